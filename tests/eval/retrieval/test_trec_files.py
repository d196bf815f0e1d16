"""Picks as TREC files, by hand."""

from dataclasses import replace

import numpy as np

from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.retrieval.records import QueryRecord
from qrag_jax.eval.retrieval.trec_files import write_trec
from qrag_jax.eval.setting import Setting
from qrag_jax.measures.trec import read_qrels, read_run
from qrag_jax.qrag.tasks import corpus_task, examples_task
from qrag_jax.types import Document, Example

SETTING = Setting(method="trained", mode="latent", positions="relative", seed=0, num_chunks=3)


def record(query, chosen, values, gold, **setting):
    return QueryRecord(query, "?", replace(SETTING, **setting), chosen, values, gold, 0.0, 0.0)


def test_chunks_rank_as_they_were_picked_though_their_values_rise(tmp_path):
    task = examples_task("my set", [Example("q 1", "?", ("a", "b", "c"), (0, 2)), Example("#2", "?", ("d", "e"), (1,))])
    records = [
        record("q 1", (2, 0), (0.25, 0.5), (0, 2)),
        record("#2", (1,), (-1.0,), (1,)),
        record("q 1", (1,), (7.0,), (0, 2), beam_width=4, protocol="stop"),
        record("#2", (), (), (1,), beam_width=4, protocol="stop"),
    ]
    write_trec(tmp_path / "trec", task, records)
    files = {file.name: file.read_text() for file in (tmp_path / "trec").iterdir()}
    below = float(np.nextafter(np.float32(0.25), np.float32(-1)))
    assert files == {
        "my_set_3.qrels": "q%201 0 0 1\nq%201 0 2 1\n%232 0 1 1\n",
        "my_set_3.trained.fixed.run": (
            f"q%201 Q0 2 1 0.25 trained.fixed\nq%201 Q0 0 2 {below!r} trained.fixed\n%232 Q0 1 1 -1.0 trained.fixed\n"
        ),
        "my_set_3.trained.stop.beam4.run": "q%201 Q0 1 1 7.0 trained.stop.beam4\n",
    }


def make_corpus(judged):
    documents = tuple(Document(name, f"text of {name}") for name in ("a", "b c", "d"))
    questions = (StudyQuestion("a", "like a?", ("d",), itself="a"), StudyQuestion("q", "what?", ("a", "d")))
    return corpus_task(StudyTask("corpus", "documents", documents, questions), judged)


def test_documents_of_a_corpus_have_their_own_ids_and_judgements(tmp_path):
    """The first question is a document, so its context begins with the next one."""
    task = make_corpus({"a": {"d": 2, "b c": 0, "elsewhere": 1}, "q": {"a": 1, "d": 3}})
    write_trec(tmp_path, task, [record("a", (1, 0), (2.0, 1.0), (1,)), record("q", (0, 1), (2.0, 1.0), (0, 2))])
    assert read_qrels(tmp_path / "corpus_3.qrels") == {"a": {"d": 2, "b c": 0, "elsewhere": 1}, "q": {"a": 1, "d": 3}}
    assert read_run(tmp_path / "corpus_3.trained.fixed.run") == {
        "a": {"d": 2.0, "b c": 1.0},
        "q": {"a": 2.0, "b c": 1.0},
    }
