import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.encoders import TOKENIZERS, byte_bpe, mpnet_words, unigram
from support.tiers import examples
from tokenizers import Tokenizer

from qrag_jax.models.encoder.sources import PACKAGE_MODULE
from qrag_jax.models.encoder.tokenizer import TextTokenizer, train_word_level
from qrag_jax.types import InputError, UsageError

TEXTS = ("Mary went to the kitchen.", "John went to the hall.", "Mary took the milk.")
LONG = "Mary went to the hall. " * 40


@pytest.fixture(scope="module")
def tokenizer():
    return train_word_level(TEXTS)


def test_vocabulary_by_hand():
    # the: 3, a and b: 2 each (ties alphabetically), c: 1
    tokenizer = train_word_level(["the a b", "The a b c", "the"])
    assert (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.cls_id, tokenizer.sep_id) == (0, 1, 2, 3)
    assert [row.tolist() for row in tokenizer.ids(["THE a b c d", ""])] == [[4, 5, 6, 7, 1], []]
    assert tokenizer.vocab_size == 8


def test_vocabulary_is_cut_from_the_rare_end():
    tokenizer = train_word_level(["the a b", "The a b c", "the"], vocab_size=6)
    assert tokenizer.ids(["the a b c"])[0].tolist() == [4, 5, 1, 1]


def test_training_is_deterministic_and_reads_any_iterable():
    texts = [f"word{index} other{index % 7} the" for index in range(50)]
    assert train_word_level(texts).to_json() == train_word_level(text for text in texts).to_json()


def test_rows_by_hand(tokenizer):
    the, mary = tokenizer.ids(["the mary"])[0]
    table = tokenizer.encode(["the", "", "the mary the"], window=8)
    assert table.tokens.dtype == table.lengths.dtype == np.int32
    assert table.tokens.tolist() == [[2, the, 3, 0, 0], [2, 3, 0, 0, 0], [2, the, mary, the, 3]]
    assert table.lengths.tolist() == [3, 2, 5]
    assert table.counted == (3, 3 + 2 + 5, 0)


def test_what_is_cut_is_counted(tokenizer):
    the, mary = tokenizer.ids(["the mary"])[0]
    table = tokenizer.encode(["the mary the mary", "the", "mary " * 5], window=4)
    assert table.tokens.tolist() == [[2, the, mary, 3], [2, the, 3, 0], [2, mary, mary, 3]]
    assert table.num_texts_cut == 2


def test_rows_of_a_fixed_length(tokenizer):
    table = tokenizer.encode(["the"], window=8, length=6)
    assert table.tokens.shape == (1, 6) and table.lengths.tolist() == [3]
    assert tokenizer.encode([], window=8).tokens.shape == (0, 2)
    with pytest.raises(UsageError, match="length 2: a row has 3 tokens"):
        tokenizer.encode(["the"], window=8, length=2)


def test_long_text_is_never_cut_by_the_tokenizer_file(tokenizer, tmp_path):
    raw = Tokenizer.from_str(tokenizer.to_json())
    raw.enable_truncation(8)
    raw.enable_padding(length=8)
    raw.save(str(tmp_path / "tokenizer.json"))
    assert len(raw.encode(LONG).ids) == 8 and len(raw.encode("the").ids) == 8
    read = TextTokenizer.from_file(tmp_path / "tokenizer.json")
    assert read.count(LONG) == 240 and read.count("the") == 1
    table = read.encode([LONG, "the"], window=512)
    assert table.lengths.tolist() == [242, 3] and table.num_texts_cut == 0
    assert len(read.offsets(LONG)[0]) == 240
    written = json.loads(read.to_json())
    assert written["truncation"] is None and written["padding"] is None


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE_MODULE) is None, reason="embedded MiniLM is not installed")
def test_minilm_file_does_not_cut_at_128():
    spec = importlib.util.find_spec(PACKAGE_MODULE)
    path = Path(spec.submodule_search_locations[0]) / "model" / "tokenizer.json"
    assert json.loads(path.read_text())["truncation"]["max_length"] == 128
    tokenizer = TextTokenizer.from_file(path)
    assert tokenizer.count(LONG) == 240
    assert tokenizer.encode(["the"], window=512).tokens.tolist() == [[101, 1996, 102]]


def test_too_long_text_is_refused_when_strict(tokenizer):
    message = r"text 'Mary went to the hall\. Mary.*\.\.\.' has 242 tokens .* the window has 16"
    with pytest.raises(InputError, match=message):
        tokenizer.encode(["the", LONG], window=16, strict=True)
    assert tokenizer.encode(["the", LONG], window=242, strict=True).num_texts_cut == 0


def test_offsets_point_into_the_text_as_given():
    tokenizer = train_word_level(["café naïve 日 本 !"])
    text = "  Café  NAÏVE\u3000日本! \U0001f600x"
    ids, offsets = tokenizer.offsets(text)
    assert [text[start:end] for start, end in offsets] == ["Café", "NAÏVE", "日", "本", "!", "\U0001f600x"]
    assert ids.dtype == np.int32 and offsets.dtype == np.int64
    assert tokenizer.unknown_id not in ids[:-1] and ids[-1] == tokenizer.unknown_id
    assert tokenizer.offsets("")[1].shape == (0, 2)


def test_rows_of_byte_pairs_by_hand():
    # no merges: one token a byte; a space is the byte that is written as \u0120
    tokenizer = byte_bpe([])
    h, i, space = (tokenizer._tokenizer.token_to_id(token) for token in ("h", "i", "\u0120"))
    table = tokenizer.encode(["hi h", "", "i"], window=8)
    assert table.tokens.tolist() == [[0, h, i, space, h, 2], [0, 2, 1, 1, 1, 1], [0, i, 2, 1, 1, 1]]
    assert (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.cls_id, tokenizer.sep_id) == (1, 3, 0, 2)
    # a character of two bytes is two tokens that share its place
    assert tokenizer.offsets("h\u00e9i")[1].tolist() == [[0, 1], [1, 2], [1, 2], [2, 3]]


def test_rows_of_unigram_pieces_by_hand():
    tokenizer = unigram(["mary went"])
    mary, went, space, e, unknown = (
        tokenizer._tokenizer.token_to_id(token) for token in ("\u2581mary", "\u2581went", "\u2581", "e", "<unk>")
    )
    table = tokenizer.encode(["Mary went e!", "went"], window=5)
    assert table.tokens.tolist() == [[0, mary, went, space, 2], [0, went, 2, 1, 1]]
    assert (table.num_texts_cut, tokenizer.unknown_id, tokenizer.pad_id) == (1, unknown, 1)
    assert tokenizer.ids(["e!"])[0].tolist() == [space, e, unknown]
    assert tokenizer.offsets("Mary went")[1].tolist() == [[0, 4], [4, 9]]  # the space belongs to the word after it


def test_mpnet_uses_its_own_special_tokens_although_bert_s_are_there():
    tokenizer = mpnet_words(["mary went"])
    mary = tokenizer._tokenizer.token_to_id("mary")
    assert tokenizer.encode(["mary x"], window=8).tokens.tolist() == [[0, mary, 5, 2]]
    assert tokenizer.special_tokens == {
        "pad_token": "<pad>", "unk_token": "[UNK]", "cls_token": "<s>", "sep_token": "</s>",
    }  # fmt: skip
    again = TextTokenizer(Tokenizer.from_str(tokenizer.to_json()))
    assert again.special_tokens == tokenizer.special_tokens


@pytest.mark.parametrize("family", list(TOKENIZERS))
def test_special_tokens_come_back_from_a_folder(family, tmp_path):
    tokenizer = TOKENIZERS[family](TEXTS)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer.special_tokens))
    again = TextTokenizer.from_file(tmp_path / "tokenizer.json")
    assert again.special_tokens == tokenizer.special_tokens and again.to_json() == tokenizer.to_json()
    expected, found = (which.encode([LONG, "x", ""], 16) for which in (tokenizer, again))
    assert found.tokens.tolist() == expected.tokens.tolist() and found.num_texts_cut == expected.num_texts_cut > 0


@examples(60)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_offsets_are_in_order_and_inside_the_text(tokenizer, text):
    ids, offsets = tokenizer.offsets(text)
    assert ids.tolist() == tokenizer.ids([text])[0].tolist()
    assert len(ids) == len(offsets) <= tokenizer.count(text)
    flat = offsets.ravel().tolist()
    assert all(0 <= start < end <= len(text) for start, end in offsets)
    assert flat == sorted(flat)


def test_round_trip_through_json(tokenizer):
    again = TextTokenizer(Tokenizer.from_str(tokenizer.to_json()))
    assert again.to_json() == tokenizer.to_json()
    assert again.ids([LONG])[0].tolist() == tokenizer.ids([LONG])[0].tolist()


def test_wrong_files_are_refused(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"nothing\.json: no such tokenizer file"):
        TextTokenizer.from_file(tmp_path / "nothing.json")
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json()[:-50])
    with pytest.raises(InputError, match=r"tokenizer\.json: not a tokenizer of the `tokenizers` library"):
        TextTokenizer.from_file(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match=r"the vocabulary has no \[PAD\]; tokenizers with \[PAD\], .* or <pad>"):
        TextTokenizer(Tokenizer.from_str(tokenizer.to_json().replace("[PAD]", "<none>")))


def test_wrong_texts_are_refused(tokenizer):
    with pytest.raises(InputError, match="text 1: lone surrogate at character 2"):
        tokenizer.ids(["fine", "no\ud800"])
    with pytest.raises(InputError, match="one str was given where a sequence of them is needed"):
        tokenizer.ids("the")
    with pytest.raises(InputError, match=r"text 1: float nan is not a str"):
        tokenizer._encode_batch(["fine", float("nan")], offsets=False)
    with pytest.raises(UsageError, match="window 2: at least 3 tokens are needed"):
        tokenizer.encode(["the"], window=2)
