import math

import pytest

from benchmarks.sqrag.flare import ActiveConfig, retrieve_actively
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.search.context.pack import Context, Passage
from qrag_jax.types import Generation, InputError


class Search:
    """A passage that says what was searched for."""

    def __init__(self):
        self.queries = []

    def __call__(self, query):
        self.queries.append(query)
        text = f"found by {query}"
        return Context((Passage(1, "d", ((0, len(text)),), text, 2, 1.0, 1, 0),), 2, 10, 0)


def drafts(**by_question):
    """A model that answers by the passage and question of the prompt: text -> least probability."""

    def say(messages):
        last = messages[-1].content
        for key, (text, least) in by_question.items():
            if f"found by {key.replace('_', ' ')}\n" in last:
                return Generation(text, "stop", logprobs=(math.log(0.99), math.log(least)))
        raise AssertionError(last)

    return ScriptedGenerator(say)


MODEL = drafts(who=("maybe Ann", 0.3), maybe_Ann=("Ann it is", 0.9), where=("Rome", 0.95))


def test_unsure_drafts_are_searched_for_by_hand():
    search = Search()
    who, where = retrieve_actively(["who", "where"], search, MODEL)
    assert [one.context.passages[0].text for one in (who, where)] == ["found by maybe Ann", "found by where"]
    assert (who.num_searches, where.num_searches) == (2, 1)
    assert [call.text for call in who.calls] == ["maybe Ann", "Ann it is"] and len(where.calls) == 1
    assert search.queries == ["who", "where", "maybe Ann"]


@pytest.mark.parametrize(("theta", "rounds", "searches"), [(0.0, 2, 1), (0.8, 0, 1), (0.8, 1, 2), (1.1, 1, 2)])
def test_a_threshold_of_zero_never_searches_again_and_rounds_bound_it(theta, rounds, searches):
    (one,) = retrieve_actively(["who"], Search(), MODEL, ActiveConfig(theta, rounds))
    assert one.num_searches == searches and len(one.calls) <= rounds


def test_drafts_of_a_round_are_one_batch():
    sizes = []

    class Batches(ScriptedGenerator):
        def generate(self, prompts, **options):
            sizes.append(len(prompts))
            return super().generate(prompts, **options)

    say = lambda messages: Generation("no", "stop", logprobs=(math.log(0.1),))  # noqa: E731
    retrieve_actively(["a", "b", "c"], Search(), Batches(say), ActiveConfig(rounds=2))
    assert sizes == [3, 3]


def test_a_blank_draft_ends_its_question():
    blank = ScriptedGenerator(lambda messages: Generation(" ", "stop", logprobs=(math.log(0.1),)))
    (one,) = retrieve_actively(["who"], Search(), blank)
    assert one.num_searches == 1


def test_models_without_probabilities_and_failures_are_refused():
    with pytest.raises(InputError, match="no log-probabilities"):
        retrieve_actively(["who"], Search(), ScriptedGenerator(lambda messages: "Ann"))
    failing = ScriptedGenerator(lambda messages: Generation("", "error", error="no such model"))
    with pytest.raises(InputError, match="'who': no such model"):
        retrieve_actively(["who"], Search(), failing)
