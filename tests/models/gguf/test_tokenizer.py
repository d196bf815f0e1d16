import re

import numpy as np
import pytest
from support.gguf_files import MERGES, TOKENS, tokenizer_fields
from tokenizers import Tokenizer

from qrag_jax.models.gguf.tokenizer import ends_of_gguf, tokenizer_from_gguf
from qrag_jax.types import InputError

LETTER, OTHER = r"[^\W\d_]", r"(?:_|[^\s\w])"  # without \p: numerals are digits in these texts
CONTRACTION = "'s|'t|'re|'ve|'m|'ll|'d"
RULES = {
    "gpt-2": rf"{CONTRACTION}| ?{LETTER}+| ?\d+| ?{OTHER}+|\s+(?!\S)|\s+",
    "qwen2": rf"(?i:{CONTRACTION})|(?:_|[^\r\n\w])?{LETTER}+|\d| ?{OTHER}+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": rf"(?i:{CONTRACTION})|(?:_|[^\r\n\w])?{LETTER}+|\d{{1,3}}| ?{OTHER}+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
TEXTS = [
    "", " ", "the inn", "It's the 123rd inn,  in 1234 inns!", "a\n\n the\tthe \r\n  the", "In the ÄRA über das 日本",
    "'S the_the __ -- (in)", "in   ", "x'sin 'll", "  12 3 ",
]  # fmt: skip


def pieces(tokenizer: Tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).tokens


def slow_pieces(pre, text):
    """Byte-level BPE in plain Python: words by a rule, then the best merge again and again."""
    alphabet = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in alphabet]
    letters = {byte: chr(byte) for byte in alphabet} | {byte: chr(256 + index) for index, byte in enumerate(rest)}
    digits_apart = re.split(r"(\d)", text) if pre == "smollm" else [text]
    words = [word for part in digits_apart for word in re.findall(RULES["gpt-2" if pre == "smollm" else pre], part)]
    found = []
    for word in words:
        parts = [letters[byte] for byte in word.encode()]
        if pre == "llama-bpe" and "".join(parts) in TOKENS:
            parts = ["".join(parts)]
        while True:
            ranks = {MERGES.index(pair): place for place in reversed(range(len(parts) - 1))
                     if (pair := f"{parts[place]} {parts[place + 1]}") in MERGES}  # fmt: skip
            if not ranks:
                break
            place = ranks[min(ranks)]
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        found += parts
    return found


@pytest.mark.parametrize("pre", ["smollm", *RULES])
def test_pieces_are_those_of_plain_python(pre):
    tokenizer = tokenizer_from_gguf(tokenizer_fields(pre), "x")
    for text in TEXTS:
        assert pieces(tokenizer, text) == slow_pieces(pre, text)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text and [TOKENS[number] for number in ids] == pieces(tokenizer, text)


def test_digits_by_hand():
    found = {pre: pieces(tokenizer_from_gguf(tokenizer_fields(pre), "x"), "a1234") for pre in ("smollm", *RULES)}
    assert found == {
        "smollm": ["a", "1", "2", "3", "4"],  # alone
        "gpt-2": ["a", "123", "4"],  # as the merges will
        "qwen2": ["a", "1", "2", "3", "4"],
        "llama-bpe": ["a", "123", "4"],  # by three
    }


def test_qwen2_composes_and_the_others_leave_text_alone():
    assert pieces(tokenizer_from_gguf(tokenizer_fields("qwen2"), "x"), "e\u0301") == ["Ã", "©"]
    assert pieces(tokenizer_from_gguf(tokenizer_fields("smollm"), "x"), "e\u0301") == ["e", "Ì", "ģ"]


def test_special_tokens_are_read_whole_and_only_control_ones_are_special():
    tokenizer = tokenizer_from_gguf(tokenizer_fields(), "x")
    encoding = tokenizer.encode("in<|im_end|><think>in")
    assert encoding.tokens == ["in", "<|im_end|>", "<think>", "in"]
    assert tokenizer.decode(encoding.ids, skip_special_tokens=True) == "in<think>in"
    plain = tokenizer_from_gguf(tokenizer_fields(token_type=None), "x")
    assert "<|im_end|>" not in plain.encode("in<|im_end|>").tokens


def test_ends_of_an_answer():
    # What the file names, and <|endoftext|>, which is a control token; bos is no end.
    assert ends_of_gguf(tokenizer_fields(), "x") == (1, 2, {0, 2})
    kinds = [1] * len(TOKENS)
    assert ends_of_gguf(tokenizer_fields(token_type=kinds, eot_token_id=5), "x") == (1, 2, {2, 5})
    assert ends_of_gguf(tokenizer_fields(bos_token_id=None, eos_token_id=None, token_type=kinds), "x") == (
        None,
        None,
        frozenset(),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "tekken"}, "x: tokenizer.ggml.pre is 'tekken', only gpt-2, smollm, qwen2, llama-bpe are read"),
        ({"pre": None}, "pre is None, only"),
        ({"pre": ["smollm"]}, r"pre is \['smollm'\], only"),
        ({"model": "llama"}, "tokenizer.ggml.model is 'llama', only 'gpt2'"),
        ({"tokens": None}, "tokenizer.ggml.tokens: a list of texts is needed"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens: a list of texts is needed"),
        ({"tokens": [*TOKENS[:-1], "a"]}, "tokens names 1 tokens twice"),
        ({"tokens": [*TOKENS, "\ud800"]}, "tokenizer.ggml.tokens: contains half a character"),
        ({"token_type": [1, 2]}, f"token_type has 2 entries for {len(TOKENS)} tokens"),
        ({"token_type": 3}, "token_type is 3, a list"),
        ({"token_type": ["x"] * len(TOKENS)}, r"token_type is \['x', 'x'.*, a list of whole numbers is needed"),
        ({"token_type": np.full(len(TOKENS), np.nan)}, r"(?s)token_type is array\(\[nan, .*, a list of whole numbers"),
        ({"token_type": np.full(len(TOKENS), np.inf)}, r"(?s)token_type is array\(\[inf, .*, a list of whole numbers"),
        ({"token_type": [[1], [1]]}, "token_type is ..1., .1.., a list of whole numbers"),
        ({"tokens": [*(t for t in TOKENS if t != "z"), "zz"]}, r"no token for 1 of the bytes .*\('z' in its letters\)"),
        ({"tokens": [*(t for t in TOKENS if t not in "Ãð"), "a?", "b?"]}, "no token for 2 of the bytes"),
        ({"merges": None}, "tokenizer.ggml.merges: a list of texts is needed"),
        ({"merges": ["a b"]}, "merges: entry 0 is 'a b'; expected two tokens whose concatenation"),
        ({"merges": ["in"]}, "merges: entry 0 is 'in'"),
    ],
)
def test_broken_fields_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        tokenizer_from_gguf(tokenizer_fields(**changes), "x")


@pytest.mark.parametrize("value", [len(TOKENS), -1, "2", True])
def test_ids_outside_the_vocabulary(value):
    with pytest.raises(InputError, match=f"x: tokenizer.ggml.eos_token_id is {value!r}, an id below {len(TOKENS)}"):
        ends_of_gguf(tokenizer_fields(eos_token_id=value), "x")


def test_bytes_that_texts_do_not_have_need_no_token():
    # 0xc0, 0xc1 and those from 0xf5 on are no part of UTF-8; 0xf1 and 0xf2 open what is not assigned; 0 to 2 are marks.
    tokens = [f"{token}{token}?" if token in [*"ÀÁõö÷øùúûüýþÿ", *"ñò", *"ĀāĂ"] else token for token in TOKENS]
    assert sum(left != right for left, right in zip(tokens, TOKENS, strict=True)) == 18
    tokenizer = tokenizer_from_gguf(tokenizer_fields(tokens=tokens), "x")
    text = "".join(map(chr, [9, 10, 13, *range(32, 0xD800), *range(0xE000, 0x40000, 97), 0xE0100]))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
