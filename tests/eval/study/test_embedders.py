from qrag_jax.eval.study.embedders import padded_lengths


def test_padded_lengths_by_hand():
    assert padded_lengths(256) == [8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert padded_lengths(20) == [8, 16, 20]
    assert padded_lengths(5) == [5]
