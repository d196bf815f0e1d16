import pytest

from qrag_jax.eval.study.cells.costs import Meter, encoder_flops, make_cost, with_dollars
from qrag_jax.llm.prices import Prices
from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.types import Cost

TINY = EncoderConfig(vocab_size=5, hidden_size=2, num_layers=3, num_heads=1, intermediate_size=5)


def test_flops_by_hand():
    # d = 2, f = 5, L = 3: 2 * 3 * (16 + 20) + 4 * 9 * 2 = 216 + 72 = 288 a layer, of which there are three.
    assert encoder_flops(TINY, [3]) == 864
    # L = 1: 2 * 36 + 4 * 2 = 80 a layer.
    assert encoder_flops(TINY, [3, 1, 3]) == 864 + 240 + 864
    assert encoder_flops(TINY, []) == 0


def test_flops_are_those_of_the_matrix_products_one_by_one():
    config = EncoderConfig(vocab_size=5, hidden_size=12, num_layers=2, num_heads=3, intermediate_size=20)
    for length in (1, 7, 30):
        product = lambda rows, inner, columns: 2 * rows * inner * columns  # noqa: E731
        heads = config.num_heads * 2 * product(length, config.hidden_size // config.num_heads, length)
        layer = 4 * product(length, 12, 12) + heads + product(length, 12, 20) + product(length, 20, 12)
        assert encoder_flops(config, [length]) == 2 * layer


def test_flops_of_a_long_text_are_more_than_those_of_its_halves():
    assert encoder_flops(TINY, [64]) > encoder_flops(TINY, [32, 32]) > encoder_flops(TINY, [32])


def test_meters_add_up():
    meter = Meter(1.0, 10, 100.0, 2, 1, 0.5)
    meter.add(Meter(0.25, 5, 50.0, 3, 0, 0.25))
    assert meter == Meter(1.25, 15, 150.0, 5, 1, 0.75)


def test_a_cost_keeps_the_stages_apart_and_adds_the_rest():
    sentences, chunks = Meter(2.0, 1_000, 1e6, 50, 0, 0.1), Meter(3.0, 400, 2e6, 7, 0, 3.0)
    cost = make_cost(0.5, sentences, chunks, 10_752)
    assert cost == Cost({"chunk": 0.5, "embed_sentences": 2.0, "embed_chunks": 3.0}, 1_400, 3e6, 10_752)
    assert cost.dollars is None


def test_a_cost_with_prices_has_dollars():
    meter = Meter(1799.5, 1, 1.0, 1)
    cost = with_dollars(make_cost(1.0, meter, meter, 0), Prices(compute_per_hour=3.0))
    assert cost.dollars == pytest.approx(3.0)
    assert with_dollars(cost, Prices()).dollars == 0 and with_dollars(cost, None).dollars is None
