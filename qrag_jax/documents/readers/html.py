"""The text of an HTML page: all that a browser shows but navigation, or its main part."""

from collections.abc import Callable

from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError

_DEFAULT = ReadOptions()
# Elements of which only the words are kept.
_PLAIN = (
    "abbr", "b", "cite", "code", "del", "em", "font", "i", "ins", "kbd", "mark", "q", "s", "samp", "small", "span",
    "strong", "sub", "sup", "tt", "u", "var",
)  # fmt: skip


def read_html(raw: bytes, options: ReadOptions = _DEFAULT) -> Converted:
    """The text of a page below its title: all that a browser shows but navigation, or its main part if that is asked.

    Args:
        options: `encoding` is that of a page that does not declare its own.
    """
    from qrag_jax.documents.readers.html_as_markdown import Page, markdown, page_markdown, with_title
    from qrag_jax.documents.readers.html_encoding import decoded
    from qrag_jax.documents.readers.html_writer import count_words

    html, wrong = decoded(raw, options.encoding)
    page = page_markdown(html)
    left_out = page.left_out
    if options.html == "article":
        article = markdown(_article(html))
        left_out["words outside of the article"] = max(0, count_words(page.text) - count_words(article))
        page = Page(article, page.title)
    if not page.text:
        raise InputError(
            "an HTML page without text (scripts may create it in a browser, but none is run here); save the text "
            "that you see there"
        )
    left_out.update(wrong)
    return Converted(with_title(page), left_out=+left_out)


def _article(html: str) -> str:
    """The main part of a page."""
    import trafilatura
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

    from qrag_jax.documents.readers.html_as_markdown import parse
    from qrag_jax.documents.readers.html_elements import raise_all

    root = parse(html)
    if root is None:
        return ""
    raise_all(root)
    etree.strip_tags(root, *_PLAIN)
    # As HTML: its own Markdown has backslashes in names, and marks text as code that is not.
    text = etree.tostring(root, encoding="unicode", method="html")
    return trafilatura.extract(text, output_format="html", include_comments=False, favor_recall=True) or ""


def _load(options: ReadOptions) -> Callable[[bytes], Converted]:
    import qrag_jax.documents.readers.html_as_markdown
    import qrag_jax.documents.readers.html_encoding  # noqa: F401

    if options.html == "article":
        import trafilatura  # noqa: F401 -- takes half a second

    return lambda raw: read_html(raw, options)


KIND = FileKind(
    (".html", ".htm", ".xhtml"), "an HTML page", ("trafilatura", "lxml", "webencodings", "chardet"), _load,
    looks_like_text=True, version=2, uses=("html",),
)  # fmt: skip
