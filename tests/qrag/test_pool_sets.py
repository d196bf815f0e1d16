"""Questions to a pool: from a corpus by document and characters, and from multi-hop sets."""

import json

import numpy as np
import pytest
from support.passages import documents, split_lines

from qrag_jax.qrag.pool_sets import corpus_pool, multihop_pool
from qrag_jax.search.corpus import Corpus
from qrag_jax.types import InputError

TEXTS = ("Ann has a red key.\nBob left.", "The key fits the door.\nIt is blue.")


def made_corpus(with_vectors=True):
    found = documents(*TEXTS)
    nodes = tuple(chunk for document in found for chunk in split_lines(document))
    return Corpus(found, nodes, np.eye(len(nodes), dtype=np.float32) if with_vectors else None)


def questions(tmp_path, *rows):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(path)]


def test_gold_by_document_and_characters(tmp_path):
    corpus = made_corpus()
    names = [document.id for document in corpus.documents]
    door = TEXTS[1].index("fits")
    rows = (
        {"id": "a", "question": "What fits?", "evidence": [
            {"file": names[0], "start": 10, "end": 17}, {"file": names[1], "start": door, "end": door + 20}]},
        {"id": "b", "question": "Who left?", "evidence": [{"file": names[0], "text": "Bob left."}]},
        {"id": "c", "question": "What of Cid?", "evidence": [{"file": "cid.txt", "start": 0, "end": 3}]},
        {"id": "d", "question": "What is told?", "relevant": [names[0]]},
    )  # fmt: skip
    task = corpus_pool(corpus, "two", questions(tmp_path, *rows))
    contexts = task.contexts(np.arange(len(task)), np.random.default_rng(0))
    assert list(task.query_ids) == ["a", "b"] and contexts.chunks.tolist() == [[0, 2], [1, -1]]
    assert task.num_left_out == 2 and len(task.notes) == 2
    assert any("not in the corpus" in note for note in task.notes) and any("several chunks" in n for n in task.notes)
    assert task.pool.documents.tolist() == [0, 0, 1, 1] and np.array_equal(task.pool.vectors, np.eye(4))


def test_questions_with_an_answer_need_no_gold_where_a_run_says_so(tmp_path):
    rows = (
        {"id": "a", "question": "What fits?", "answer": "the key"},
        {"id": "b", "question": "Who?", "relevant": ["x"]},
    )
    paths = questions(tmp_path, *rows, {"id": "c", "question": "Where?", "relevant": ["gone"], "answer": "here"})
    with pytest.raises(InputError, match="neither evidence nor relevant"):
        corpus_pool(made_corpus(), "two", paths)
    task = corpus_pool(made_corpus(), "two", paths, needs_gold=False)
    assert list(task.query_ids) == ["a", "c"] and task.num_left_out == 1
    assert np.array(task.num_gold).tolist() == [0, 0] and list(task.answers or ()) == [("the key",), ("here",)]
    contexts = task.contexts(np.arange(2), np.random.default_rng(0))
    assert contexts.chunks.tolist() == [[-1], [-1]] and not contexts.gold.any()


def test_bad_corpora_and_questions(tmp_path):
    corpus = made_corpus()
    name = corpus.documents[0].id
    outside = {"question": "Who?", "evidence": [{"file": name, "start": 5, "end": 500}]}
    with pytest.raises(InputError, match=r"\[5, 500\) is not inside"):
        corpus_pool(corpus, "two", questions(tmp_path, outside))
    nowhere = {"question": "Who?", "evidence": [{"file": "cid.txt", "start": 0, "end": 5}]}
    with pytest.raises(InputError, match="no question has its gold in the pool: 1 questions left out: names a file"):
        corpus_pool(corpus, "two", questions(tmp_path, nowhere))
    with pytest.raises(InputError, match="the index has no vectors"):
        corpus_pool(made_corpus(with_vectors=False), "two", questions(tmp_path, outside))


def test_paragraphs_of_all_questions_are_one_pool(tmp_path):
    row = lambda name, *titles: {  # noqa: E731
        "_id": name, "question": f"Who is {name}?", "context": [[title, [f"{title} is."]] for title in titles],
        "supporting_facts": [[titles[0], 0], [titles[1], 0]],
    }  # fmt: skip
    path = tmp_path / "hotpot.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (row("x", "A", "B", "C"), row("y", "C", "A", "D"))))
    task = multihop_pool([("hotpot", str(path))], [("D", "D is."), ("E", "E is.")])
    assert list(task.texts) == ["A: A is.", "B: B is.", "C: C is.", "D: D is.", "E: E is."]
    assert list(task.pool.titles) == ["A", "B", "C", "D", "E"]
    assert task.contexts(np.arange(2), np.random.default_rng(0)).chunks.tolist() == [[0, 1], [0, 2]]
    assert list(task.query_ids) == ["hotpot:x", "hotpot:y"] and task.sets == ["hotpot", "hotpot"]
