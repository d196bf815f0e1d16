"""Patterns against Python's own `re`, whose parser reads ours too; and what is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.models.grammar import automaton
from qrag_jax.models.grammar.automaton import byte_automaton
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.models.grammar.regex import parse_regex
from qrag_jax.types import Regex, UsageError

ATOMS = (
    "a",
    "b",
    "é",
    "€",
    "😀",
    ".",
    r"\d",
    r"\W",
    r"\s",
    "[a-c€]",
    "[^a😀]",
    r"[\d_-]",
    "[]x]",
    r"\.",
    r"\u00e9",
    r"\n",
    "",
)
COUNTS = ("", "*", "+", "?", "{2}", "{1,2}", "{1,}", "{0}", "*?")
LETTERS = "ab1é€😀.-_]x \n\x7f\u0800\uffff"


def patterns():
    def grown(inner):
        group = st.builds("({}){}".format, inner, st.sampled_from(COUNTS))
        return st.one_of(
            st.builds("{}|{}".format, inner, inner),
            st.builds("{}{}".format, inner, group),
            st.builds("(?:{})".format, inner),
        )

    counted = st.builds(
        lambda atom, count: atom + count if atom else "", st.sampled_from(ATOMS), st.sampled_from(COUNTS)
    )
    return st.recursive(counted, grown, max_leaves=6)


@examples(400)
@given(patterns(), st.lists(st.text(LETTERS, max_size=5), min_size=8, max_size=8))
def test_it_matches_what_python_matches(pattern, texts):
    try:
        automaton = compile_grammar(Regex(pattern))
    except UsageError as error:
        assert "admits no text" in str(error) and not any(re.fullmatch(pattern, text, re.ASCII) for text in texts)
        return
    for text in texts:
        assert (automaton.fault(text) is None) == (re.fullmatch(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize("pattern", [".", "[^a]", r"\W", "[\x80-\u07ff]", "[\u1000-\U0001f600]", r"[\x7f-\u0081]"])
def test_every_length_of_character_at_its_borders(pattern):
    automaton = compile_grammar(Regex(pattern))
    borders = {
        0x7F,
        0x80,
        0x7FF,
        0x800,
        0xFFF,
        0x1000,
        0xCFFF,
        0xD7FF,
        0xE000,
        0xFFFF,
        0x10000,
        0x3FFFF,
        0x40000,
        0x10FFFF,
    }
    for code in sorted(borders | {0, 10, 97, 0x81, 0x1F600, 0x1F601}):
        assert (automaton.fault(chr(code)) is None) == bool(re.fullmatch(pattern, chr(code), re.ASCII)), hex(code)
    assert automaton.fault("\ud800") is not None


def test_a_fault_is_where_no_text_of_the_grammar_goes_on():
    automaton = compile_grammar(Regex("ab?€c"))
    assert [automaton.fault(text) for text in ("ab€c", "a€c", "ab", "ax", "", "ab€cd", "a£c")] == [
        None,
        None,
        2,
        1,
        0,
        4,
        1,
    ]


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("a(?=b)", "look-arounds are not read"),
        ("a(?<!b)", "look-arounds are not read"),
        ("^a", "the whole answer is matched"),
        (r"\bа", "the whole answer is matched"),
        (r"(a)\1", "references to groups are not read"),
        ("(?i)a", "flags are not read"),
        ("(?i:a)", "flags are not read"),
        ("(?>a)", "atomic groups are not read"),
        ("a*+", "possessive repetitions are not read"),
        ("a**", "multiple repeat at position 2"),
        ("*a", "nothing to repeat at position 0"),
        ("a{3,2}", "min repeat greater than max repeat"),
        ("a{99999}", "a count is at most 10,000"),
        ("a{99999999999}", "the repetition number is too large"),
        ("(a", "missing ), unterminated subpattern at position 0"),
        ("a)", "unbalanced parenthesis"),
        ("[a", "unterminated character set"),
        ("[z-a]", "bad character range z-a"),
        (r"[\d-z]", r"bad character range \d-z"),
        (r"\u12", r"incomplete escape \u12"),
        ("(" * 60 + ")" * 60, "nested more than 50 deep"),
        ("(" * 9000 + ")" * 9000, "nested more than 50 deep"),
        ("(a{9000}){9000}", "more than 50,000 parts"),
        ("(a|b)*a(a|b){20}", "more than 16,384 states"),
        (r"[^\s\S]", "admits no text at all"),
    ],
)
def test_what_is_refused(pattern, what):
    with pytest.raises(UsageError, match=re.escape(what.replace("\\\\", "\\"))):
        compile_grammar(Regex(pattern))


def test_few_states_that_stand_for_very_many_parts_are_refused(monkeypatch):
    """Of (a?){n} each of n states stands for up to n parts: n = 4,000 took 18 s and 400 MB."""
    monkeypatch.setattr(automaton, "_MAX_MEMBERS", 10_000)
    with pytest.raises(UsageError, match="states that stand for more than 10,000 parts"):
        byte_automaton(parse_regex("(a?){200}"))
    assert byte_automaton(parse_regex("(a?){50}")).fault("a" * 50) is None
