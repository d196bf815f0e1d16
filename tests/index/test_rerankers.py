"""Rerankers by their names, and an `Index` that reranks."""

import numpy as np
import pytest
from support.encoders import small_minilm
from support.talkers import tiny_talker

from qrag_jax import open_index
from qrag_jax.cli.output import answer_to_json
from qrag_jax.index.options import AskOptions, SearchOptions
from qrag_jax.index.rerankers import load_reranker
from qrag_jax.models.decoder.weights import save_decoder
from qrag_jax.search.rerank import RerankOptions
from qrag_jax.types import Document, TextCounts, UsageError

DOCUMENTS = [Document(str(number), f"The lamp stands in room {number}.") for number in range(4)]
QUESTION = "Where is the lamp in room 0?"


@pytest.fixture(scope="module", autouse=True)
def minilm(tmp_path_factory):
    """Two of its layers: no test asks what it knows."""
    with small_minilm(tmp_path_factory.mktemp("minilm")):
        yield


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """Two folders with the same decoder, the second with the name of one that judges."""
    folder = tmp_path_factory.mktemp("decoders")
    for name in ("tiny", "Qwen3-Reranker-tiny"):
        save_decoder(folder / name, tiny_talker(max_positions=1024))
    return folder


class Longest:
    """Likes room 3 most; satisfies `types.Reranker`."""

    name, weight, num_parameters = "rooms", None, None
    counts = TextCounts()

    def __call__(self, question, passages, progress=None):
        return np.array([float(passage[-2]) for passage in passages])


@pytest.mark.parametrize(
    ("source", "kind", "weight"),
    [
        ("tiny", "likelihood", 0.1),
        ("yesno:{}tiny", "yesno", None),
        ("Qwen3-Reranker-tiny", "yesno", None),
        ("likelihood:{}Qwen3-Reranker-tiny", "likelihood", 0.1),
    ],
)
def test_kinds_by_name(decoder, source, kind, weight):
    source = source.format(f"{decoder}/") if "{}" in source else f"{decoder}/{source}"
    reranker = load_reranker(source)
    assert (reranker.kind, reranker.weight) == (kind, weight) and reranker.name.startswith(f"{kind}:{decoder}")


def test_a_model_that_is_not_there():
    with pytest.raises(UsageError, match="no such folder or .gguf file"):
        load_reranker("likelihood:nowhere.gguf")
    with pytest.raises(UsageError, match="a server tells only likelihood"):
        load_reranker("yesno:tiny@http://localhost:1/v1")
    with pytest.raises(UsageError, match="likelihood:: no model"):
        load_reranker("likelihood:")


def test_an_index_reranks_and_keeps_the_model(decoder):
    with open_index(DOCUMENTS) as index:
        options = SearchOptions(2, retriever="bm25", rerank=RerankOptions(f"{decoder}/tiny", files=3))
        first, second = index.find(QUESTION, options), index.find(QUESTION, options)
        assert [hit.node for hit in first.hits] == [hit.node for hit in second.hits] and len(first.hits) == 2
        told = first.reranked
        assert told.name == f"likelihood:{decoder}/tiny" and len(told.scores) == 3
        best = sorted(told.scores, key=told.scores.get, reverse=True)[:2]
        assert [hit.node for hit in first.hits] == best
        assert [hit.score for hit in first.hits] == [told.scores[node] for node in best]
        assert first.cost.reranker_tokens == told.num_tokens > 3 * len(QUESTION)
        assert set(first.cost.seconds) - set(second.cost.seconds) <= {"read", "chunk", "load"}
        assert second.cost.seconds["rerank"] > 0 <= second.cost.seconds["search"]


def test_search_and_ask_take_a_reranker():
    with open_index(DOCUMENTS) as index:
        hits = index.search(QUESTION, 1, retriever="bm25", rerank=Longest())
        assert hits[0].text.endswith("room 3.") and hits[0].score == 3
        options = AskOptions(SearchOptions(retriever="bm25", rerank=RerankOptions(Longest())), num_quotes=0)
        answer = index.ask(QUESTION, options=options)
        assert [passage.rank for passage in answer.context.passages] == [4, 3, 2, 1]
        assert answer.reranked.scores == {0: 0, 1: 1, 2: 2, 3: 3} and "rerank" in answer.cost.seconds


def test_token_vectors_order_before_a_reranker():
    with open_index(DOCUMENTS) as index:
        plain, late = index.find(QUESTION), index.find(QUESTION, SearchOptions(late=True))
        both = index.find(QUESTION, SearchOptions(late=True, rerank=RerankOptions(Longest(), weight=0.0)))
        assert late.late.scores.keys() == both.late.scores.keys() == {hit.node for hit in plain.hits}
        assert late.late.weight == 4 and late.cost.embedder_tokens == both.cost.embedder_tokens > len(DOCUMENTS) * 8
        scores = {hit.node: hit.score + 4 * late.late.scores[hit.node] for hit in plain.hits}
        assert [hit.score for hit in late.hits] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-6)
        assert [hit.node for hit in both.hits] == [hit.node for hit in late.hits] and both.reranked.scores[3] == 3
        assert {"search", "late", "rerank"} <= both.cost.seconds.keys()
        by_default = index.find(QUESTION, SearchOptions(rerank=RerankOptions(Longest(), weight=0.0)))
        assert [hit.score for hit in by_default.hits] == [hit.score for hit in both.hits]
        answer = index.ask(QUESTION, options=AskOptions(SearchOptions(late=True)))
        assert answer.context.passages[0].document_id == "0" and "late" in answer.cost.seconds
        told = answer_to_json(answer)
        assert told["late"] == {"model": "late", "weight": 4.0, "num_passages": 4, "num_passages_cut": 0}
        assert told["context"]["passages"][0]["late_score"] == answer.late.scores[answer.context.passages[0].node]


@pytest.mark.parametrize(("late", "given", "told"), [(True, None, 1.25), (False, None, 0.25), (True, 0.5, 0.5)])
def test_a_reranker_weighs_five_times_as_much_after_token_vectors(late, given, told):
    class Weighed(Longest):
        weight = 0.25

    with open_index(DOCUMENTS) as index:
        ranked = index.find(QUESTION, SearchOptions(late=late))
        found = index.find(QUESTION, SearchOptions(late=late, rerank=RerankOptions(Weighed(), weight=given)))
        scores = [hit.score + told * found.reranked.scores[hit.node] for hit in ranked.hits]
        assert found.reranked.weight == told
        assert [hit.score for hit in found.hits] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)


def test_all_candidates_of_a_reranker_are_compared_by_tokens():
    texts = [f"The key {'of the hall ' * (n % 3)}is in room {n}." for n in range(40)]
    with open_index([Document(f"{n}.txt", text) for n, text in enumerate(texts)]) as index:
        last = index.find(QUESTION, SearchOptions(40)).hits[29]

        class Likes(Longest):
            def __call__(self, question, passages, progress=None):
                return np.array([100.0 * (passage == last.text) for passage in passages])

        options = SearchOptions(40, late=True, rerank=RerankOptions(Likes(), files=30, weight=0.1))
        found = index.find(QUESTION, options)
        assert found.hits[0].text == last.text and len(found.late.scores) == len(found.reranked.scores) == 30


def test_a_run_is_not_reranked(tmp_path):
    with (
        open_index(DOCUMENTS) as index,
        pytest.raises(UsageError, match="a run picks passages step by step"),
    ):
        index.search(QUESTION, None, retriever=str(tmp_path), rerank=Longest())
