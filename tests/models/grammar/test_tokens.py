"""The automaton over tokens against a walk byte by byte, over made vocabularies with halves of characters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.models.grammar import tokens as grammar_tokens
from qrag_jax.models.grammar.automaton import byte_automaton
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.models.grammar.expressions import ANY_CHARACTER, Characters, Run, sequence, without
from qrag_jax.models.grammar.tokens import END, FAR, REFUSED, token_automaton
from qrag_jax.types import Choice, JsonSchema, Regex, UsageError

PIECES = [
    b"ab", b"a", b"b", b'"', b'","', b'["', b'"]', b"[]", b",", b"[", b"]", b"\xc3", b"\xa9", b"\xc3\xa9", b"aaa",
    b'a"]', b"\xe2\x82", b"\xac", b'\xac"', b"1", b"12", b" ", b"  \n", b"\\", b"\\n", b"true", b'a","b', b'","abc',
]  # fmt: skip
SINGLE = [bytes([byte]) for byte in range(256)]
VOCABULARY = [None, *SINGLE, *PIECES, b""]
ENDS = [0]
GRAMMARS = {
    "choice": Choice(("a", "ab", "abab", "é", "€1")),
    "regex": Regex("(a|é){1,3}b?|[^a]{2}"),
    "texts": JsonSchema.of(
        {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 3}, "maxItems": 2}
    ),
    "numbers": JsonSchema.of(
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 12}, "maxItems": 3}
    ),
}


def advance(automaton, state, left, token):
    """(state, left) after a token; None where it is refused."""
    kind = automaton.class_of_token[token]
    if automaton.next_state[state, kind] < 0 or automaton.uses[state, kind] > left:
        return None
    granted = automaton.grants[state, kind]
    return int(automaton.next_state[state, kind]), int(left - automaton.uses[state, kind] if granted < 0 else granted)


def slow_advance(bytewise, state, left, spelling):
    for byte in spelling:
        kind = bytewise.class_of_byte[byte]
        left -= int(bytewise.takes[state, kind])
        grant, state = bytewise.grants[state, kind], int(bytewise.next_state[state, kind])
        if state < 0 or left < 0:
            return None
        left = left if grant < 0 else int(grant)
    return state, left


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_token_is_its_bytes_in_every_state_that_can_be_met(name):
    bytewise = compile_grammar(GRAMMARS[name])
    automaton = token_automaton(bytewise, VOCABULARY, ENDS, len(VOCABULARY) + 3)
    seen, waiting = set(), [(0, automaton.left)]
    while waiting:
        state, left = waiting.pop()
        assert (advance(automaton, state, left, 0) is not None) == bytewise.accepting[state]
        for token, spelling in enumerate(VOCABULARY):
            if spelling:
                found = advance(automaton, state, left, token)
                assert found == slow_advance(bytewise, state, left, spelling), (state, left, spelling)
                if found is not None and found not in seen:
                    seen.add(found)
                    waiting.append(found)
    assert len(seen) > 3


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_distance_is_that_of_the_shortest_way(name):
    """A way of that length exists from every state, whatever is left of a run; from the start none is shorter."""
    automaton = token_automaton(compile_grammar(GRAMMARS[name]), VOCABULARY, ENDS, len(VOCABULARY))
    accepting = automaton.next_state[:, END] >= 0
    np.testing.assert_array_equal(automaton.distance == 0, accepting)
    for state in np.flatnonzero(automaton.distance > 0):
        near = [advance(automaton, state, 0, token) for token in range(1, len(VOCABULARY))]
        assert min(automaton.distance[found[0]] for found in near if found) == automaton.distance[state] - 1
    layer, steps = {(0, automaton.left)}, 0
    while not any(accepting[state] for state, _ in layer):
        moved = {advance(automaton, *where, token) for where in layer for token in range(1, len(VOCABULARY))}
        layer, steps = {where for where in moved if where is not None}, steps + 1
    assert steps == automaton.distance[0] < FAR


@examples(60)
@given(st.lists(st.binary(min_size=1, max_size=3), max_size=30), st.integers(1, 4))
def test_classes_do_not_depend_on_how_states_are_grouped(pieces, rows):
    """Also for vocabularies of any bytes; blocks of few states are put together as one large one."""
    vocabulary = [None, *SINGLE, *pieces]
    bytewise = byte_automaton(sequence("<", Run(Characters(without(((62, 62),))), 4), ">é"))
    whole = token_automaton(bytewise, vocabulary, ENDS, len(vocabulary))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar_tokens, "_BLOCK_CELLS", rows * 40)
        parts = token_automaton(bytewise, vocabulary, ENDS, len(vocabulary))
    for one in (whole, parts):
        columns = one.next_state, one.uses, one.grants
        assert [table[:, one.class_of_token].tolist() for table in columns] == [
            table[:, whole.class_of_token].tolist() for table in (whole.next_state, whole.uses, whole.grants)
        ]
    assert whole.next_state.shape == parts.next_state.shape


def test_marks_and_padding_are_in_no_answer():
    bytewise = byte_automaton(Run(Characters(ANY_CHARACTER), 5))
    automaton = token_automaton(bytewise, [None, b"a", b"", None, b"\xff", b"b"], [0, 3], 9)
    kinds = automaton.class_of_token
    assert kinds[[0, 3]].tolist() == [END, END] and kinds[[2, 4, 6, 7, 8]].tolist() == [REFUSED] * 5
    assert kinds[1] == kinds[5] > END and automaton.next_state.shape == (8, 3)


def test_tables_stay_small_with_many_tokens():
    words = [f"{number:x}".encode() for number in range(20_000)]
    automaton = token_automaton(compile_grammar(GRAMMARS["texts"]), [None, *SINGLE, *words], ENDS, 20_257)
    assert automaton.next_state.shape[1] < 150 and automaton.next_state.nbytes < 10**6


@pytest.mark.parametrize(
    ("grammar", "vocabulary", "ends", "what"),
    [
        (Choice(("é",)), [None, b"e"], [0], "cannot spell any text"),
        (Choice(("ab", "b")), [None, b"a"], [0], "cannot spell any text that it admits"),
        (Choice(("ab",)), [None, b"abc", b"bab"], [0], "cannot spell any text"),
        (Choice(("ab",)), [b"a", b"b"], [], "no token that ends an answer"),
        (Choice(()), [None, b"a"], [0], "admits no text at all"),
    ],
)
def test_what_is_refused(grammar, vocabulary, ends, what):
    with pytest.raises(UsageError) as caught:
        token_automaton(compile_grammar(grammar), vocabulary, ends, len(vocabulary))
    assert what in str(caught.value)


def test_tables_beyond_the_cap_are_refused(monkeypatch):
    monkeypatch.setattr(grammar_tokens, "MAX_CELLS", 100)
    with pytest.raises(UsageError, match=r"states that tell \d+ kinds of tokens apart: use fewer or smaller"):
        token_automaton(compile_grammar(GRAMMARS["texts"]), VOCABULARY, ENDS, len(VOCABULARY))


def test_what_the_vocabulary_cannot_finish_is_not_begun():
    """ "ab" cannot be spelt here, so neither is its beginning."""
    automaton = token_automaton(compile_grammar(Choice(("ab", "ac"))), [None, b"a", b"c", b"ax"], ENDS, 4)
    assert advance(automaton, 0, 0, 1) is not None and advance(automaton, 0, 0, 3) is None
    beginless = token_automaton(compile_grammar(Choice(("xb", "ac"))), [None, b"a", b"c", b"x"], ENDS, 4)
    assert advance(beginless, 0, 0, 3) is None
