"""Questions of RULER: needles by task, gold, chains of variables, lengths, draws, and the QA tasks."""

import re

import numpy as np
import pytest

from qrag_jax.data.stories.ruler import NEEDLES, TASKS, NeedleMaker
from qrag_jax.data.stories.ruler_context import Asked, Noise, TokenCounts, compose, packed
from qrag_jax.data.stories.ruler_qa import QaQuestion, QaSet, qa_questions
from qrag_jax.data.stories.ruler_words import ADJECTIVES, NOISE, NOUNS
from qrag_jax.types import UsageError

ESSAYS = tuple(f"Essay sentence number {i} has {i % 7} of {'many ' * (i % 5)}words." for i in range(300))
NEEDLE = re.compile(r"One of the special magic (numbers|uuids) for (\S+) is: (\S+)\.")
ASSIGNED = re.compile(r"VAR ([A-Z]{5}) = (?:VAR ([A-Z]{5})|(\d{5}))\.")
NUM_GOLD = {"niah_multivalue": 4, "niah_multiquery": 4, "vt": 5}


def count(texts):
    """Words as tokens."""
    return [len(text.split()) for text in texts]


def make(task, num_tokens=900, num_questions=3, seed=0, essays=ESSAYS):
    return NeedleMaker(count, lambda: essays, seed, 40).questions(task, num_tokens, num_questions)


def test_words_of_keys_are_distinct_and_enough_for_a_million_tokens():
    assert len(set(ADJECTIVES)) == len(ADJECTIVES) and len(set(NOUNS)) == len(NOUNS)
    assert all(word.isalpha() and word.islower() for word in ADJECTIVES + NOUNS)
    assert len(ADJECTIVES) * len(NOUNS) > 100_000


@pytest.mark.parametrize("task", NEEDLES)
def test_needles_by_task(task):
    kind = NEEDLES[task]
    for question in make(task):
        whole = " ".join(question.chunks)
        found = NEEDLE.findall(whole)
        asked = [one for one in found if one[1] in question.question]
        assert [value for _, _, value in sorted(asked, key=lambda one: question.answers.index(one[2]))] == [
            *question.answers
        ]
        assert len(asked) == NUM_GOLD.get(task, 1) == len(question.answers)
        assert len({key for _, key, _ in asked}) == kind.num_asked
        assert len(found) > 20 if kind.noise == "needles" else len(found) == kind.num_keys * kind.num_values
        assert len({value for _, _, value in found}) == len(found)
        if kind.num_values == 1:
            assert len({key for _, key, _ in found}) == len(found)
        assert all((len(value) == 7 and value.isdigit()) == (kind.value == "numbers") for _, _, value in found)
        assert all((len(key) == 36) == (kind.key == "uuids") for _, key, _ in found)
        rest = NEEDLE.sub("", whole)
        if kind.noise == "sentences":
            assert not re.sub("|".join(map(re.escape, NOISE)), "", rest).strip()
        elif kind.noise == "essays":
            assert rest.count("Essay sentence") > 50


@pytest.mark.parametrize("task", [*NEEDLES, "vt"])
def test_gold_is_the_chunks_of_the_asked_needles(task):
    for question in make(task):
        if task == "vt":
            holds = [bool(ASSIGNED.search(chunk)) for chunk in question.chunks]
        else:
            holds = [any(key in question.question for _, key, _ in NEEDLE.findall(c)) for c in question.chunks]
        assert np.flatnonzero(holds).tolist() == list(question.gold)
        assert question.titles == ("",) * len(question.chunks)


def test_a_chain_is_connected_and_in_order():
    for question in make("vt"):
        found = ASSIGNED.findall(" ".join(question.chunks))
        first, *hops = found
        assert first[2] in question.question and first[2] and len(hops) == 4
        assert all(hop[1] == before[0] for hop, before in zip(hops, found[:-1], strict=True))
        assert tuple(name for name, _, _ in found) == question.answers and len(set(question.answers)) == 5
        assert "VAR" not in ASSIGNED.sub("", " ".join(question.chunks))


@pytest.mark.parametrize("task", [*NEEDLES, "vt"])
@pytest.mark.parametrize("num_tokens", [700, 3000])
def test_lengths(task, num_tokens):
    for question in make(task, num_tokens):
        assert question.num_tokens == sum(count(question.chunks))
        assert 0.96 * num_tokens < question.num_tokens <= num_tokens
        assert max(count(question.chunks)) <= 40


def test_draws_depend_on_seed_and_number_only():
    assert make("niah_multikey_2", num_questions=2) == make("niah_multikey_2", num_questions=5)[:2]
    assert make("vt", seed=1) != make("vt") == make("vt")
    of_other_length = make("niah_multikey_1", 2000)
    for short, long in zip(make("niah_multikey_1", 700), of_other_length, strict=True):
        assert (short.question, short.answers) == (long.question, long.answers)
    keys = {question.question for question in make("niah_single_1", num_questions=40)}
    assert len(keys) >= 39  # of 4,096 keys, two of 40 questions may share one


def test_questions_share_most_chunks():
    questions = make("niah_single_2", 3000, num_questions=10)
    distinct = {chunk for question in questions for chunk in question.chunks}
    assert len(distinct) < 1.6 * len(questions[0].chunks)


def test_essays_repeat_where_a_context_is_longer():
    (question,) = make("niah_single_2", 600, 1, essays=ESSAYS[:20])
    assert " ".join(question.chunks).count("Essay sentence number 3 ") > 1


def test_needles_between_sentences_by_hand():
    noise = Noise(["a b", "c", "d e", "f g"], [2, 1, 2, 2], [(0, 2), (2, 4)])
    asked = Asked("?", ("N N", "M"), frozenset({0}), ("1",))
    for seed in range(20):
        made = compose(7, asked, noise, 10, 4, TokenCounts(count), np.random.default_rng(seed))
        assert made.num_tokens == 10 and made.id == "7" and all(len(chunk.split()) <= 4 for chunk in made.chunks)
        assert [i for i, chunk in enumerate(made.chunks) if "N N" in chunk] == list(made.gold)
        words = [word for word in " ".join(made.chunks).split() if word not in "NM"]
        assert words in (list("abcdefg"), list("defgabc"))


def test_packing_by_hand():
    assert list(packed([2, 2, 3, 9, 1, 1], 4)) == [(0, 2), (2, 3), (3, 4), (4, 6)]


def test_a_length_too_small_names_the_smallest_that_works():
    for task in (*NEEDLES, "vt"):
        with pytest.raises(UsageError, match=f"num_tokens=50: is too short for {task}; give at least") as found:
            make(task, 50)
        assert found.value.field == "num_tokens"
        least = int(re.findall(r"at least ([\d,]+)", str(found.value))[0].replace(",", ""))
        assert len(make(task, least)) == 3
        with pytest.raises(UsageError, match="is too short"):
            make(task, least - 1)


def test_a_text_is_counted_once():
    seen = []
    counts = TokenCounts(lambda texts: seen.extend(texts) or count(texts))
    assert counts(["a b", "c", "a b"]) == [2, 1, 2] and counts(["c", "d"]) == [1, 1]
    assert seen == ["a b", "c", "d"]


def paragraphs(is_one_title=True):
    titles = {f"T{i}: paragraph {i} has words": f"T{i}" for i in range(40)}
    titles |= {"t1:  Paragraph 1 has words": "t1", "T2: another text of title 2": "T2"}
    questions = [QaQuestion(f"q{i}", f"Who is {i}?", (f"T{i}: paragraph {i} has words",), ("x",)) for i in range(4)]
    return QaSet("set.jsonl", questions, titles, is_one_title)


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_gold_paragraphs_among_others(task):
    data, counts = paragraphs(task == "qa_2"), TokenCounts(count)
    made = qa_questions(task, data, 60, 10, 3, counts)
    assert sorted(question.id for question in made) == ["q0", "q1", "q2", "q3"]
    for question in made:
        number = question.id[1:]
        assert [question.chunks[i] for i in question.gold] == [f"T{number}: paragraph {number} has words"]
        keys = [" ".join(chunk.split()).casefold() for chunk in question.chunks]
        assert len(set(keys)) == len(keys) and 55 < question.num_tokens == sum(count(question.chunks)) <= 60
        assert [data.titles[chunk] for chunk in question.chunks] == list(question.titles)
        assert task == "qa_1" or question.titles.count("T2") <= 1 + (number != "2")
    assert qa_questions(task, data, 60, 2, 3, counts) == made[:2]
    assert qa_questions(task, data, 60, 10, 4, counts) != made


def test_all_other_paragraphs_of_one_title_are_copies_of_the_gold():
    (question,) = [q for q in qa_questions("qa_2", paragraphs(), 195, 9, 0, TokenCounts(count)) if q.id == "q2"]
    assert "T2: another text of title 2" not in question.chunks and len(question.chunks) == 39
    questions = qa_questions("qa_1", paragraphs(False), 200, 9, 0, TokenCounts(count))
    assert all("T2: another text of title 2" in question.chunks for question in questions)


def test_refusals_of_paragraphs():
    with pytest.raises(UsageError, match="num_tokens=10: is too short for qa_1; give at least"):
        qa_questions("qa_1", paragraphs(), 10, 4, 0, TokenCounts(count))
    with pytest.raises(UsageError, match=r"set.jsonl has only \d+ tokens for a context; give a larger file"):
        qa_questions("qa_1", paragraphs(), 1000, 4, 0, TokenCounts(count))


def test_all_tasks_are_named():
    assert len(TASKS) == 11 and len(NEEDLES) == 8
