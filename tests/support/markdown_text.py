"""Markdown for property tests, and what spans over a text must keep."""

from hypothesis import strategies as st

_BLOCKS = [
    "# One",
    "## Two ##",
    "###### Six",
    "#",
    "### \ufeff",
    "Title\n===",
    "Two\nlines\n---",
    "A paragraph. It has two sentences.",
    "word",
    "```\n# no\n\nx\n```",
    "~~~py\nx",
    "```\nnever closed",
    "|a|b|\n|-|-|\n|1|2|\n|3|4|",
    "- a\n- b",
    "- a\n\n  # in a list\n\n  - c",
    "1. one\n2. two",
    "> quoted\n> # no",
    ">",
    "---\ntitle: x\n---",
    "+++\nx = 1\n+++",
    "---",
    "***",
    "<div>\n# no\n</div>",
    "<!-- open",
    "[a]: http://b 'c'",
    "[a]: b\n[c]:\n  d",
    "    code\n\n    more",
    "\tcode",
    "\\# no",
    "\u4eca\u65e5\u306f\u3002\u660e\u65e5\u3002",
    "a\0b",
    "\ud800",
    "\u202e\u05e9\u05dc\u05d5\u05dd",
    "a\u2028# b",
    "\x0c",
    "\ufeff",
]
_ENDS = ["\n", "\n\n", "\r\n", "\r\n\r\n", "\r", "\n \t\n", "\n\n\n", "", " ", "\u3000"]

# Blocks of every kind, some never closed, between line ends of every kind.
MARKDOWN = st.lists(st.tuples(st.sampled_from(_BLOCKS), st.sampled_from(_ENDS)), max_size=14).map(
    lambda pairs: "".join(part for pair in pairs for part in pair)
)


def check_cover(text, spans):
    """Spans are ordered, disjoint, stripped and not empty, and cover every character that is not white space."""
    covered = 0
    for start, end in spans:
        assert covered <= start < end <= len(text)
        assert not text[covered:start].strip()
        assert text[start:end] == text[start:end].strip()
        covered = end
    assert not text[covered:].strip()
