"""Our searches and encoders in `mteb.evaluate`: its scores are those of our own measures."""

from dataclasses import replace

import numpy as np
import pytest
from support.beir_folders import make_rows
from support.runs import SCRATCH, save_run

from qrag_jax import load_encoder, make_embedder, open_index
from qrag_jax.measures.trec import falling_scores, score_run
from qrag_jax.types import Document, EncoderOptions

pytestmark = pytest.mark.oracle

DOCUMENTS, QUESTIONS, JUDGED = make_rows()
TEXTS = {name: f"{title} {text}".strip() for name, title, text in DOCUMENTS}
MEASURES = {"ndcg_cut_10": "ndcg_at_10", "recall_10": "recall_at_10", "P_5": "precision_at_5"}


def make_task():
    """A retrieval task in memory; `exact` has MTEB's scores of each question, before it rounds them."""
    from datasets import Dataset
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class Places(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="Places", description="-", type="Retrieval", category="t2t", main_score="ndcg_at_10",
            dataset={"path": "none", "revision": "0"}, eval_langs=["eng-Latn"],
        )  # fmt: skip

        def load_data(self, **_):
            corpus = [{"id": name, "title": title, "text": text} for name, title, text in DOCUMENTS]
            queries = [{"id": name, "text": text} for name, text in QUESTIONS]
            split = {"corpus": Dataset.from_list(corpus), "queries": Dataset.from_list(queries)}
            self.dataset = {"default": {"test": {**split, "relevant_docs": JUDGED, "top_ranked": None}}}
            self.data_loaded = True

        def task_specific_scores(self, scores, *_, **__):
            self.exact = scores
            return {}

    return Places()


def check(model, run):
    """MTEB's scores of a model are ours of a run that was made without MTEB: each question's, and the rounded means."""
    import mteb

    task = make_task()
    (result,) = mteb.evaluate(model, task, cache=None, show_progress_bar=False).task_results
    ours = score_run(run, JUDGED, [5, 10])
    assert set(task.exact) == set(ours)
    for query, row in ours.items():
        for name in MEASURES:
            assert task.exact[query][name] == pytest.approx(row[name], abs=1e-6), (query, name)
    (scores,) = result.scores["test"]
    for name, theirs in MEASURES.items():
        mean = sum(row[name] for row in ours.values()) / len(ours)
        assert scores[theirs] == pytest.approx(mean, abs=5e-6), name  # it keeps 5 digits
    assert 0.05 < scores["ndcg_at_10"] < 0.95  # neither blind nor perfect


def found(retriever, top_k, **options):
    """A run of `open_index`: documents in the order of their best passage."""
    documents = [Document(name, text) for name, text in TEXTS.items()]
    run = {}
    with open_index(documents, retriever=retriever, **options) as index:
        for name, question in QUESTIONS:
            hits = index.search(question, top_k)
            run[name] = falling_scores((hit.place.document, hit.score) for hit in hits)
    return run


@pytest.mark.parametrize("retriever", ["hybrid", "dense", "bm25"])
def test_a_search_scores_as_it_does_without_mteb(retriever):
    from mteb.models import SearchProtocol

    from qrag_jax.integrations.mteb import MtebSearch

    model = MtebSearch(retriever)
    assert isinstance(model, SearchProtocol)
    check(model, found(retriever, len(DOCUMENTS)))


def test_a_run_scores_as_it_does_without_mteb(tmp_path):
    from qrag_jax.integrations.mteb import MtebSearch

    folder = save_run(tmp_path / "run", list(TEXTS.values()), encoder=replace(SCRATCH, window=24, question_window=16))
    check(MtebSearch(folder, num_steps=8), found(folder, 8))


@pytest.mark.parametrize("reads", [EncoderOptions(), EncoderOptions(query_prompt="query: ", document_prompt="text: ")])
def test_an_encoder_scores_as_its_cosines_do(reads):
    from mteb.models import EncoderProtocol, SearchProtocol

    from qrag_jax.integrations.mteb import MtebEncoder

    model = MtebEncoder("minilm", reads)
    assert isinstance(model, EncoderProtocol) and not isinstance(model, SearchProtocol)
    embed = make_embedder(
        load_encoder("minilm", query_prompt=reads.query_prompt, document_prompt=reads.document_prompt)
    )
    cosines = embed.questions([text for _, text in QUESTIONS]) @ embed(list(TEXTS.values())).T
    names = [name for name, _ in QUESTIONS]
    check(model, {name: dict(zip(TEXTS, row, strict=True)) for name, row in zip(names, cosines.tolist(), strict=True)})


def test_an_encoder_compares_what_is_similar():
    """A task without questions: the cosines of pairs."""
    from qrag_jax.integrations.mteb import MtebEncoder

    model = MtebEncoder()
    one, other = (model.encode([{"text": [text, "Rain fell."]}]) for text in ("A cat sat.", "The cat was sitting."))
    whole, pairs = np.asarray(model.similarity(one, other)), np.asarray(model.similarity_pairwise(one, other))
    assert np.diag(whole) == pytest.approx(pairs, abs=1e-6) and pairs[1] == pytest.approx(1, abs=1e-6)
    assert whole[0, 0] > 0.8 > 0.3 > whole[0, 1]


def test_the_revision_tells_models_apart(tmp_path):
    """MTEB reads results of the same name and revision from its cache."""
    from qrag_jax.integrations.mteb import MtebEncoder, MtebSearch

    runs = [save_run(tmp_path / name, [*TEXTS.values(), name]) for name in ("run", "other")]
    models = [
        *(MtebSearch(name) for name in ("hybrid", "dense", "bm25")),
        *map(MtebSearch, runs),
        MtebSearch(runs[0], num_steps=5),
        MtebEncoder(),
        MtebEncoder(reads=EncoderOptions(dim=64)),
    ]
    assert len({model.mteb_model_meta.revision for model in models}) == len(models)
    assert MtebSearch("hybrid").mteb_model_meta == models[0].mteb_model_meta
    assert models[3].mteb_model_meta.name == "qrag_jax/run"
