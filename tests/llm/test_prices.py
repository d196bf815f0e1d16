import re
from dataclasses import replace
from pathlib import Path

import pytest

from qrag_jax.llm.prices import Prices, dollars, load_prices, spent
from qrag_jax.types import Cost, Generation, UsageError

ROOT = Path(__file__).parents[2]
SECONDS = {"chunk": 900.0, "embed_sentences": 1800.0, "embed_chunks": 900.0, "answers": 7200.0}
COST = Cost(SECONDS, embedder_tokens=5_000_000, index_bytes=2**29, prompt_tokens=2_000_000, completion_tokens=100_000)
PRICES = Prices(
    embedder_per_million_tokens=0.02,
    compute_per_hour=0.4,
    storage_per_gib_month=0.5,
    storage_months=4,
    prompt_per_million_tokens=0.15,
    completion_per_million_tokens=0.6,
)


def test_own_hardware_by_hand():
    # One hour of chunking and embedding: 0.4. Half a GiB for 4 months: 1. Prompts 0.3, answers 0.06.
    assert dollars(COST, PRICES) == pytest.approx(0.4 + 1 + 0.3 + 0.06)


def test_a_hosted_encoder_by_hand():
    # A quarter of an hour of chunking: 0.1. Five million tokens: 0.1. The rest as above.
    assert dollars(COST, replace(PRICES, embedder="hosted")) == pytest.approx(0.1 + 0.1 + 1 + 0.3 + 0.06)


def test_embedding_is_never_paid_twice():
    longer = replace(COST, seconds={**SECONDS, "embed_chunks": 1e6})
    more = replace(COST, embedder_tokens=10**9)
    assert dollars(more, PRICES) == dollars(COST, PRICES) < dollars(longer, PRICES)
    hosted = replace(PRICES, embedder="hosted")
    assert dollars(longer, hosted) == dollars(COST, hosted) < dollars(more, hosted)


def test_what_has_no_price_is_free():
    assert dollars(COST, Prices()) == 0 == dollars(COST, Prices(embedder="hosted"))
    assert dollars(Cost(), PRICES) == 0


def test_the_file_of_the_project_loads_and_says_where_every_price_is_from():
    path = ROOT / "configs/study/prices.yaml"
    prices = load_prices(path)
    for name in ("embedder_per_million_tokens", "compute_per_hour", "storage_per_gib_month",
                 "prompt_per_million_tokens", "completion_per_million_tokens"):  # fmt: skip
        assert getattr(prices, name) > 0
        assert re.search(rf"^{name}: .*# .*\b20\d\d$", path.read_text(), re.MULTILINE)


def test_an_empty_file_is_free(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("")
    assert load_prices(path) == Prices()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embeder: own", "prices.yaml:1: embeder: unknown field .*did you mean embedder"),
        (
            "compute_per_hour: 1\nembedder: cloud",
            "prices.yaml:2: embedder: 'cloud' is not allowed; one of: own, hosted",
        ),
        ("currency: euros", "prices.yaml:1: currency: 'euros' is not allowed; one of: dollars"),
        ("storage_months: .nan", "storage_months: expected a finite number, got nan"),
        ("compute_per_hour: 5 dollars", "prices.yaml:1: compute_per_hour: expected a number, got '5 dollars'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_prices(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="none.yaml: no such config file"):
        load_prices(tmp_path / "none.yaml")


def test_what_calls_cost():
    generations = [
        Generation("a", "stop", 100, 10),
        Generation("b", "stop", 1000, 500, from_journal=True),
        Generation("", "error", 20, 0, error="timed out after it was paid"),
    ]
    cost = spent(generations)
    assert (cost.prompt_tokens, cost.completion_tokens, cost.dollars) == (120, 10, None)
    prices = Prices(prompt_per_million_tokens=2.0, completion_per_million_tokens=10.0)
    assert spent(generations, prices).dollars == pytest.approx((120 * 2 + 10 * 10) / 1e6)
    assert spent([], prices).dollars == 0.0
