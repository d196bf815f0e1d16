from dataclasses import replace

import numpy as np

from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.models.encoder.embedder import encoder_fingerprint

CONFIG = EncoderConfig(vocab_size=5)


def params(value=1.0, dtype=np.float32):
    return {"b": {"kernel": np.full((2, 3), value, dtype)}, "a": np.zeros(4, np.float32)}


def test_equal_encoders_have_one_fingerprint():
    found = encoder_fingerprint(CONFIG, params(), "{}", 256)
    turned = {name: params()[name] for name in ("a", "b")}
    assert len(found) == 64 and found == encoder_fingerprint(replace(CONFIG), turned, "{}", 256)


def test_whatever_decides_on_vectors_changes_the_fingerprint():
    reshaped = {"b": {"kernel": np.ones((3, 2), np.float32)}, "a": np.zeros(4, np.float32)}
    renamed = {"c": {"kernel": np.ones((2, 3), np.float32)}, "a": np.zeros(4, np.float32)}
    found = [
        encoder_fingerprint(CONFIG, params(), "{}", 256),
        encoder_fingerprint(replace(CONFIG, pooling="cls"), params(), "{}", 256),
        encoder_fingerprint(replace(CONFIG, normalize=True), params(), "{}", 256),
        encoder_fingerprint(CONFIG, params(np.nextafter(np.float32(1), np.float32(2))), "{}", 256),
        encoder_fingerprint(CONFIG, params(dtype=np.float16), "{}", 256),
        encoder_fingerprint(CONFIG, reshaped, "{}", 256),
        encoder_fingerprint(CONFIG, renamed, "{}", 256),
        encoder_fingerprint(CONFIG, params(), "{} ", 256),
        encoder_fingerprint(CONFIG, params(), "{}", 255),
    ]
    assert len(set(found)) == len(found)
