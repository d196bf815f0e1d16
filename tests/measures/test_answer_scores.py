import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.measures.answer_scores import (
    CONVENTIONS,
    GivenAnswer,
    contains_reference,
    exact_match,
    normalise_answer,
    score_answer,
    token_f1,
)
from qrag_jax.types import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel\tTower.", "eiffel tower"),
        ("a", ""),
        ("An apple a day; the doctor!", "apple day doctor"),
        ("well-known", "wellknown"),  # deleted signs leave no blank
        ("A. the-man", "theman"),  # `A.` becomes an article, `theman` none
        ("another theme", "another theme"),
        ("U.S.", "us"),
        ("$1,000", "1000"),
        ("Café “X”", "café “x”"),  # only ASCII punctuation goes
        ("the’s", "’s"),  # an article ends where a word does
        ("  ", ""),
        ("北京。", "北京。"),
    ],
)
def test_normalisation_by_hand(text, expected):
    assert normalise_answer(text) == expected


@pytest.mark.parametrize(
    ("answer", "reference", "em", "f1"),
    [
        ("Paris", "paris.", 1, 1),
        ("the city of Paris", "Paris", 0, 2 * (1 / 3) / (1 / 3 + 1)),  # city of paris: 1 of 3, 1 of 1
        ("red red blue", "red green", 0, 2 / 5),  # one red is common, the second is not
        ("red red blue", "red red", 0, 4 / 5),
        ("", "Paris", 0, 0),
        ("the", "Paris", 0, 0),
        ("The The", "the the", 1, 1),
        ("The The", "a", 1, 1),  # both empty
        ("Paris", "The The", 0, 0),
        ("yes it is", "yes", 0, 2 / 4),
    ],
)
def test_scores_by_hand(answer, reference, em, f1):
    assert exact_match(answer, reference) == em
    assert token_f1(answer, reference) == pytest.approx(f1)
    assert exact_match(reference, answer) == em and token_f1(reference, answer) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("answer", "reference", "f1"),
    [
        ("yes it is", "yes", 0),
        ("Yes.", "yes", 1),
        ("no", "yes", 0),
        ("no man", "no", 0),
        ("No Man's Land", "no man land", 2 / 3),  # neither side is a bare no
        ("noanswer", "noanswer", 1),
        ("no answer", "noanswer", 0),
        ("Paris", "the city of Paris", 1 / 2),
    ],
)
def test_a_bare_yes_or_no_shares_nothing_by_the_convention_of_hotpotqa(answer, reference, f1):
    assert token_f1(answer, reference, "hotpot") == pytest.approx(f1)
    assert token_f1(reference, answer, "hotpot") == pytest.approx(f1)


def test_the_best_reference_counts_for_each_measure():
    score = score_answer("New York City", ["NYC", "New York", "york city hall, new"])
    assert (score.em, score.f1) == (0.0, pytest.approx(6 / 7))
    assert score_answer("nyc!", ["NYC", "New York"]).em == 1.0
    assert score_answer("yes", ["yes it is", "no"], "hotpot").f1 == 0.0
    assert score_answer("yes", ["yes it is", "no"]).f1 == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("answer", "references", "expected"),
    [
        ("It was born in the city of New York.", ["New York"], 1),
        ("It is in York, newly built.", ["New York"], 0),  # token for token
        ("New-York", ["new york"], 0),
        ("Normandy", ["Norman"], 0),  # whole tokens
        ("Paris or Rome", ["Oslo", "the Rome!"], 1),
        ("", ["Rome"], 0),
        ("anything at all", ["The The"], 0),
        ("the", ["The The"], 1),
    ],
)
def test_an_answer_may_contain_a_reference(answer, references, expected):
    assert contains_reference(answer, references) == expected


def test_no_reference_is_no_zero():
    with pytest.raises(InputError, match="without reference answers cannot be scored"):
        contains_reference("Paris", [])
    with pytest.raises(InputError, match="without reference answers cannot be scored"):
        score_answer("Paris", [])
    for references in ((), ("Paris", " ")):
        with pytest.raises(InputError, match="question q7: it has no reference answer"):
            GivenAnswer("q7", "Where?", "here", references)


# --- a slow reading of the definitions


def slow_words(text):
    """Letter by letter: lower case, without ASCII punctuation, split at blanks; articles are words of their own."""
    kept = ""
    for character in text.lower():
        if character not in string.punctuation:
            kept += character
    words = []
    for part in kept.split():
        runs, run = [], ""
        for character in part:  # an article may stand beside a sign that is no letter, digit or underscore
            is_word = character.isalnum() or character == "_"
            if run and is_word != (run[-1].isalnum() or run[-1] == "_"):
                runs.append(run)
                run = ""
            run += character
        runs.append(run)
        words += "".join(" " if run in ("a", "an", "the") else run for run in runs).split()
    return words


def slow_f1(answer, reference, convention):
    said, right = slow_words(answer), slow_words(reference)
    if convention == "hotpot":
        for one in (said, right):
            if one in (["yes"], ["no"], ["noanswer"]) and said != right:
                return 0.0
    if not said and not right:
        return 1.0
    left, common = list(right), 0
    for word in said:
        if word in left:
            left.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(said), common / len(right)
    return 2 * precision * recall / (precision + recall)


_WORDS = st.sampled_from("a an the The yes no noanswer Paris paris, red-red U.S. it’s 北京 “a” \t \n . é 12".split(" "))
_TEXTS = st.lists(_WORDS, max_size=6).map(" ".join) | st.text(st.characters(max_codepoint=0x2FF), max_size=12)


@given(_TEXTS, _TEXTS, st.sampled_from(CONVENTIONS))
def test_scores_are_those_of_a_slow_reading(answer, reference, convention):
    assert normalise_answer(answer).split() == slow_words(answer)
    assert exact_match(answer, reference) == float(slow_words(answer) == slow_words(reference))
    assert token_f1(answer, reference, convention) == pytest.approx(slow_f1(answer, reference, convention))


@given(_TEXTS, st.lists(_TEXTS, min_size=1, max_size=4), st.sampled_from(CONVENTIONS))
def test_exact_match_is_an_f1_of_one_and_more_references_never_hurt(answer, references, convention):
    score, fewer = (score_answer(answer, some, convention) for some in (references, references[:1]))
    assert 0 <= score.f1 <= 1 and score.em in (0, 1) and (score.em == 0 or score.f1 == 1)
    assert score.em >= fewer.em and score.f1 >= fewer.f1
    assert contains_reference(answer, references) >= score.em
    assert score_answer(answer, references[::-1], convention) == score
