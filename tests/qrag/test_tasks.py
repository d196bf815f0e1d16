from dataclasses import replace

import numpy as np
import pytest

from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.data.questions.vector_task import make_vector_task
from qrag_jax.data.stories.haystack import Haystack
from qrag_jax.data.stories.stories import StoriesBuilder, select
from qrag_jax.qrag.tasks import PADDING, corpus_task, examples_task, hidden_stories_tasks, subset, vectors_task
from qrag_jax.types import Document, Example, InputError, InputWarning, UsageError


def make_stories():
    """Three questions over 2, 3 and 5 facts; the first two ask the same."""
    builder = StoriesBuilder()
    ids = [builder.intern(f"fact {i}") for i in range(5)]
    as_ids = lambda *rows: np.asarray([ids[i] for i in rows], np.int32)  # noqa: E731
    builder.add("q0", as_ids(3, 1), "Where?", "here", [1])
    builder.add("q1", as_ids(0, 2, 4), "Where?", "there", [0, 2])
    builder.add("q2", as_ids(4, 3, 2, 1, 0), "Who?", "she", [0, 1])
    return builder.build(num_left_out=1)


def make_haystack(num_sentences=30):
    sentences = tuple(f"noise sentence {i}" for i in range(num_sentences)) + ("fact 3",)
    return Haystack(sentences, np.arange(num_sentences + 1, dtype=np.int32) // 16, "noise")


def texts_of(task, row):
    return [task.texts[i] for i in row]


# --- examples


def make_examples():
    return [
        Example("a", "Who?", ("x", "y", "z"), (2,)),
        Example("b", "Where?", ("y", "w"), (0, 1)),
        Example("c", "Who?", ("z", "z", "x", "v"), (3,)),
    ]


def test_examples_by_hand():
    task = examples_task("mine", make_examples())
    assert len(task) == 3 and list(task.query_ids) == ["a", "b", "c"] and task.num_left_out == 0
    assert list(task.texts) == ["x", "y", "z", "w", "v"]  # every text once
    assert list(task.questions) == ["Who?", "Where?"]
    contexts = task.contexts(np.array([1, 0, 1]), np.random.default_rng(0))
    assert contexts.questions.tolist() == [1, 0, 1]
    # Padded to the longest example of all, so that every batch has one shape.
    assert contexts.chunks.tolist() == [[1, 3, -1, -1], [0, 1, 2, -1], [1, 3, -1, -1]]
    assert contexts.gold.tolist() == [
        [True, True, False, False],
        [False, False, True, False],
        [True, True, False, False],
    ]
    repeated = task.contexts(np.array([2]), np.random.default_rng(0))
    assert texts_of(task, repeated.chunks[0]) == ["z", "z", "x", "v"]  # a text may stand twice in a context
    assert repeated.gold.tolist() == [[False, False, False, True]]


def test_examples_ignore_the_generator():
    task = examples_task("mine", make_examples())
    one, other = (task.contexts(np.arange(3), np.random.default_rng(seed)) for seed in range(2))
    np.testing.assert_array_equal(one.chunks, other.chunks)


def test_fewer_chunks_than_picks_are_refused_for_every_query():
    """Not for the first batch alone: the short one may come late."""
    task = examples_task("mine", make_examples())
    assert task.sizes.tolist() == [3, 2, 4]
    task.check_steps(2)
    message = "mine: query b has 2 chunks, which cannot give 3 picks .1 such queries."
    with pytest.raises(InputError, match=message):
        task.check_steps(3)


def test_more_gold_than_picks_is_said():
    task = examples_task("mine", make_examples())  # 1, 2 and 1 gold chunks
    task.warn_of_steps(2)
    message = (
        r"mine: 1 of 3 questions have more gold chunks \(up to 2\) than an episode has picks \(1\), so they can never "
        r"be complete; set env.num_steps=2, or leave these questions out"
    )
    with pytest.warns(InputWarning, match=message):
        task.warn_of_steps(1)
    subset(task, np.flatnonzero(task.num_gold == 1)).warn_of_steps(1)


def test_no_example_is_refused():
    with pytest.raises(InputError, match="mine: no example"):
        examples_task("mine", [])


def test_an_example_without_gold_is_refused():
    with pytest.raises(InputError, match="mine: query d has no gold chunk"):
        examples_task("mine", [*make_examples(), Example("d", "Why?", ("x", "y"), ())])


# --- hidden stories


def test_hidden_stories_keep_their_facts_in_order_and_mark_the_gold():
    (task,) = hidden_stories_tasks("two", make_stories(), make_haystack(), (8,))
    stories = make_stories()
    rng = np.random.default_rng(0)
    places = []
    for _ in range(20):
        contexts = task.contexts(np.arange(3), rng)
        assert contexts.chunks.shape == (3, 8)
        for story, (row, gold) in enumerate(zip(contexts.chunks, contexts.gold, strict=True)):
            texts = texts_of(task, row)
            facts = [text for text in texts if text.startswith("fact")]
            assert facts == stories.fact_texts(story)
            found = [text for text, is_gold in zip(texts, gold, strict=True) if is_gold]
            assert found == [stories.fact_texts(story)[i] for i in stories.gold[story]]
            assert task.questions[contexts.questions[story]] == stories.question(story)
        places.append(tuple(np.flatnonzero(contexts.gold[0])))
    assert len(set(places)) > 3  # every draw hides them anew


def test_stories_that_do_not_fit_are_left_out_and_counted():
    short, long = hidden_stories_tasks("two", make_stories(), make_haystack(), (4, 8))
    assert short.sizes.tolist() == [4, 4] and long.sizes.tolist() == [8, 8, 8]
    assert list(short.query_ids) == ["q0", "q1"] and short.num_left_out == 2  # one was left out before
    assert list(long.query_ids) == ["q0", "q1", "q2"] and long.num_left_out == 1
    # Query numbers of a task are those of its own query_ids, also when the first story was left out.
    (last,) = hidden_stories_tasks("two", select(make_stories(), [2, 1, 0]), make_haystack(), (3,))
    assert list(last.query_ids) == ["q1", "q0"]
    contexts = last.contexts(np.array([0]), np.random.default_rng(0))
    assert texts_of(last, contexts.chunks[0]) == ["fact 0", "fact 2", "fact 4"]


def test_lengths_share_one_pool_of_texts():
    short, long = hidden_stories_tasks("two", make_stories(), make_haystack(), (4, 8))
    assert short.texts is long.texts
    assert len(set(short.texts)) == len(short.texts) == 5 + 30


def test_a_sentence_that_is_a_fact_is_no_noise():
    (task,) = hidden_stories_tasks("two", make_stories(), make_haystack(), (30,))
    assert list(task.texts).count("fact 3") == 1
    contexts = task.contexts(np.ones(50, int), np.random.default_rng(0))  # q1 does not hold fact 3
    assert "fact 3" not in {text for row in contexts.chunks for text in texts_of(task, row)}


def test_a_shared_haystack_bounds_the_distinct_chunks():
    def num_noise(shared_haystack):
        (task,) = hidden_stories_tasks("two", make_stories(), make_haystack(), (8,), shared_haystack)
        chunks = task.contexts(np.zeros(64, int), np.random.default_rng(0)).chunks
        return len(np.unique(chunks[chunks >= 5]))

    assert num_noise(6) <= 6 < num_noise(None)


def test_same_generator_same_contexts():
    (task,) = hidden_stories_tasks("two", make_stories(), make_haystack(), (8,))
    one, again, other = (task.contexts(np.arange(3), np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.chunks, again.chunks)
    assert (one.chunks != other.chunks).any()


def test_a_length_that_no_story_fits_is_refused():
    with pytest.raises(UsageError, match="two: none of 3 questions has its story fit in 1 chunks: raise num_chunks"):
        hidden_stories_tasks("two", make_stories(), make_haystack(), (1,))


# --- vectors


def test_vectors_by_hand():
    chunks, questions = np.eye(4, 3, dtype=np.float32), np.ones((2, 3), np.float32)
    rows = [{"question": 1, "chunks": [3, 0, 2], "gold": [2]}, {"question": 0, "range": [1, 3], "gold": [1, 2]}]
    task = vectors_task("mine", make_vector_task(chunks, questions, [(f"line {i}", row) for i, row in enumerate(rows)]))
    assert task.texts is chunks and task.questions is questions and list(task.query_ids) == ["0", "1"]
    contexts = task.contexts(np.array([0, 1]), np.random.default_rng(0))
    assert contexts.questions.tolist() == [1, 0]
    assert contexts.chunks.tolist() == [[3, 0, 2], [1, 2, PADDING]]
    assert contexts.gold.tolist() == [[False, False, True], [True, True, False]]
    assert task.sizes.tolist() == [3, 2]
    # A batch of short episodes has the shape of all others.
    assert task.contexts(np.array([1]), np.random.default_rng(0)).chunks.shape == (1, 3)


def test_vectors_of_unequal_widths_are_refused():
    task = make_vector_task(
        np.ones((2, 3), np.float32), np.ones((1, 4), np.float32), [("x", {"question": 0, "gold": [0]})]
    )
    with pytest.raises(InputError, match="mine: chunk vectors have 3 components, question vectors 4"):
        vectors_task("mine", task)


# --- parts of a task


def test_a_subset_is_the_task_of_its_queries():
    task = examples_task("mine", make_examples(), num_left_out=4)
    part = subset(task, np.array([2, 0]), "part")
    assert (part.name, len(part), list(part.query_ids), part.sizes.tolist()) == ("part", 2, ["c", "a"], [4, 3])
    assert part.texts is task.texts and part.questions is task.questions and part.num_left_out == 4
    rng = np.random.default_rng(0)
    found, expected = part.contexts(np.array([0, 1, 0]), rng), task.contexts(np.array([2, 0, 2]), rng)
    for name in ("questions", "chunks", "gold"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert [part.fingerprint(i) for i in range(2)] == [task.fingerprint(i) for i in (2, 0)]
    again = subset(part, np.array([1]))
    assert (again.name, list(again.query_ids), again.fingerprint(0)) == ("part", ["a"], task.fingerprint(0))
    part.check_steps(3)
    with pytest.raises(InputError, match="query b has 2 chunks"):
        subset(task, np.array([1])).check_steps(3)


def test_a_subset_of_hidden_stories_draws_from_the_generator_that_it_is_given():
    (task,) = hidden_stories_tasks("two", make_stories(), make_haystack(), (8,))
    part = subset(task, np.array([2, 1]))
    found = part.contexts(np.arange(2), np.random.default_rng(5))
    expected = task.contexts(np.array([2, 1]), np.random.default_rng(5))
    np.testing.assert_array_equal(found.chunks, expected.chunks)


# --- reference answers


def test_reference_answers_of_examples():
    """The one answer of each by default; a missing or blank one is none."""
    answers = ("here", None, " ")
    examples = [replace(example, answer=answer) for example, answer in zip(make_examples(), answers, strict=True)]
    assert examples_task("mine", examples).answers == [("here",), (), ()]
    assert examples_task("mine", make_examples()).answers is None
    given = examples_task("mine", examples, answers=[("a", "b", "a"), ("", "c"), ()])
    assert given.answers == [("a", "b"), ("c",), ()]
    assert examples_task("mine", examples, answers=[(), (), ("",)]).answers is None
    with pytest.raises(InputError, match="mine: answers of 2 questions for 3 examples"):
        examples_task("mine", examples, answers=[("a",), ("b",)])


def test_reference_answers_follow_their_queries():
    examples = [replace(example, answer=example.query_id.upper()) for example in make_examples()]
    part = subset(examples_task("mine", examples), np.array([2, 0]))
    assert part.answers == [("C",), ("A",)] and subset(part, np.array([1])).answers == [("A",)]
    assert subset(examples_task("mine", make_examples()), np.array([1])).answers is None


def test_reference_answers_of_stories_are_those_of_the_stories_that_fit():
    short, long = hidden_stories_tasks("two", select(make_stories(), [2, 1, 0]), make_haystack(), (3, 8))
    assert dict(zip(short.query_ids, short.answers, strict=True)) == {"q1": ("there",), "q0": ("here",)}
    assert dict(zip(long.query_ids, long.answers, strict=True))["q2"] == ("she",)


def test_vectors_have_no_reference_answers():
    rows = [("x", {"question": 0, "gold": [0]})]
    task = make_vector_task(np.ones((2, 3), np.float32), np.ones((1, 3), np.float32), rows)
    assert vectors_task("mine", task).answers is None


# --- fingerprints


def story_fingerprints(stories, length=8, num_sentences=30):
    (task,) = hidden_stories_tasks("any", stories, make_haystack(num_sentences), (length,))
    return dict(zip(task.query_ids, (task.fingerprint(i) for i in range(len(task))), strict=True))


def test_a_story_has_one_fingerprint_whatever_hides_it():
    """Name, length of the context, haystack, order of reading, and what else was read beside it."""
    base = story_fingerprints(make_stories())
    assert len(set(base.values())) == 3
    assert base == story_fingerprints(make_stories(), length=20, num_sentences=40)
    assert base == story_fingerprints(select(make_stories(), [2, 0, 1]))
    short = story_fingerprints(make_stories(), length=3)  # the third story does not fit
    assert short == {query: base[query] for query in ("q0", "q1")}
    assert all(len(digest) == 16 and int(digest, 16) >= 0 for digest in base.values())


def one_story(question, *facts):
    builder = StoriesBuilder()
    builder.add("q", np.asarray([builder.intern(fact) for fact in facts], np.int32), question, "-", [0])
    return story_fingerprints(builder.build())["q"]


def test_another_question_or_other_facts_have_another_fingerprint():
    different = [
        one_story("Where?", "a", "b"),
        one_story("Who?", "a", "b"),
        one_story("Where?", "b", "a"),
        one_story("Where?", "a"),
        one_story("Where?", "a", "b", "b"),
        one_story("Where?", "ab"),
        one_story("Where?a", "b"),
    ]
    assert len(set(different)) == len(different)


def test_examples_have_one_fingerprint_whatever_stands_beside_their_gold():
    def fingerprint(question, chunks, gold):
        return examples_task(
            "any", [Example("first", "?", ("x",), (0,)), Example("q", question, chunks, gold)]
        ).fingerprint(1)

    base = fingerprint("Who?", ("x", "y", "z"), (0, 2))
    assert base == fingerprint("Who?", ("z", "other", "more", "x"), (0, 3))
    others = [
        fingerprint("Where?", ("x", "y", "z"), (0, 2)),
        fingerprint("Who?", ("x", "y", "z"), (0, 1)),
        fingerprint("Who?", ("x", "y", "z"), (0,)),
        fingerprint("Who?", ("x", "y", "z"), (0, 1, 2)),
    ]
    assert len({base, *others}) == 5


def test_vectors_have_the_fingerprint_of_what_they_are():
    """Not of their row numbers: the same vectors may stand elsewhere in another folder."""
    chunks, questions = np.eye(4, 3, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)

    def fingerprint(chunks, questions, question, ids, gold):
        row = {"question": question, "chunks": ids, "gold": gold}
        return vectors_task("any", make_vector_task(chunks, questions, [("line", row)])).fingerprint(0)

    base = fingerprint(chunks, questions, 1, [0, 2, 3], [2])
    assert base == fingerprint(chunks[::-1].copy(), questions[::-1].copy(), 0, [1, 3], [1])
    assert base != fingerprint(chunks, questions, 0, [0, 2, 3], [2])
    assert base != fingerprint(chunks, questions, 1, [0, 2, 3], [0])


# --- a corpus


def make_corpus_task():
    documents = tuple(Document(name, text) for name, text in (("a", "rye"), ("b", "oats"), ("c", "rye"), ("d", "hay")))
    questions = (
        StudyQuestion("q", "Which?", ("c", "d")),
        StudyQuestion("b", "Like oats?", ("d",), itself="b"),
        StudyQuestion("r", "which? ", ("a", "d")),
    )
    judged = {"q": {"c": 2, "d": 1}, "b": {"d": 1}, "r": {"a": 1, "d": 1}}
    return corpus_task(StudyTask("corpus", "documents", documents, questions), judged, num_left_out=3)


def test_every_question_searches_all_documents_but_itself():
    task = make_corpus_task()
    found = task.contexts(np.array([1, 0]), np.random.default_rng(0))
    assert found.questions.tolist() == [1, 0] and task.questions[1] == "Like oats?"
    assert found.chunks.tolist() == [[0, 2, 3, PADDING], [0, 1, 2, 3]]
    assert found.gold.tolist() == [[False, False, True, False], [False, False, True, True]]
    assert (task.texts, task.sizes.tolist(), task.num_left_out) == (["rye", "oats", "rye", "hay"], [4, 3, 4], 3)
    assert task.num_gold.tolist() == [2, 1, 2]
    assert [list(task.chunk_ids(query, (0, 2))) for query in range(3)] == [["a", "c"], ["a", "d"], ["a", "c"]]
    part = subset(task, np.array([1]))
    assert list(part.chunk_ids(0, (1,))) == ["c"] and part.judged == [{"d": 1}]


def test_the_same_question_over_equal_texts_is_the_same():
    task = make_corpus_task()
    assert task.fingerprint(0) == task.fingerprint(2) != task.fingerprint(1)
