from dataclasses import replace

import pytest

from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.types import UsageError

CONFIG = EncoderConfig(vocab_size=11, hidden_size=8, num_heads=2)


def test_the_defaults_are_bert():
    assert CONFIG.family == "bert" and CONFIG.first_position == 0


@pytest.mark.parametrize(("padding_id", "first"), [(1, 2), (0, 1), (5, 6)])
def test_first_position_of_roberta(padding_id, first):
    for family in ("roberta", "xlm-roberta"):
        assert replace(CONFIG, family=family, padding_id=padding_id).first_position == first


def test_first_position_of_mpnet():
    assert replace(CONFIG, family="mpnet", type_vocab_size=0).first_position == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_layers": 0}, "encoder.num_layers 0: at least 1"),
        ({"num_layers": 10_001}, "encoder num_layers is 10001, at most 10,000 is read"),
        ({"num_heads": 3}, "hidden_size 8 is not a multiple of num_heads 3"),
        ({"pooling": "max"}, "pooling 'max': choose one of mean, cls, last"),
        ({"activation": "relu"}, "activation 'relu': choose one of gelu, gelu_tanh, silu"),
        ({"family": "t5"}, "family 't5': choose one of bert, roberta, xlm-roberta, mpnet"),
        ({"family": "mpnet"}, "type_vocab_size 2: mpnet has no token types, set 0"),
        ({"family": "mpnet", "type_vocab_size": 0, "padding_id": 0}, "padding_id 0: mpnet counts positions from 1"),
        ({"family": "roberta", "type_vocab_size": 0}, "type_vocab_size 0: roberta has at least one token type"),
        ({"family": "roberta", "padding_id": -1}, "padding_id -1: an id is not negative"),
    ],
)
def test_wrong_config_is_refused(values, message):
    config = replace(CONFIG)
    for name, value in values.items():
        # Past the type checks that are on in tests; users do not have them.
        object.__setattr__(config, name, value)
    with pytest.raises(UsageError, match=message):
        config.__post_init__()
