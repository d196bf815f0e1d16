import json

import numpy as np
import pytest
from support.gguf_files import CHAT, CONTROL, THINK, TOKENS, tokenizer_fields
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from qrag_jax.models.decoder.tokenizer import DecoderTokenizer, _json_copy, _sharing_copy
from qrag_jax.models.gguf.tokenizer import tokenizer_from_gguf
from qrag_jax.types import InputError


@pytest.fixture
def tokenizer():
    return DecoderTokenizer.from_gguf(tokenizer_fields() | {"tokenizer.chat_template": CHAT})


@pytest.fixture
def folder(tmp_path):
    library = tokenizer_from_gguf(tokenizer_fields(), "x")
    library.enable_truncation(3)
    library.enable_padding(length=50)
    (tmp_path / "tokenizer.json").write_text(library.to_str())
    return tmp_path


def write(folder, name, **values):
    (folder / name).write_text(json.dumps(values))


def test_from_gguf(tokenizer):
    assert tokenizer.vocab_size == len(TOKENS)
    assert (tokenizer.bos_id, tokenizer.bos_token) == (1, "<|im_start|>")
    assert (tokenizer.eos_ids, tokenizer.eos_token) == ({0, 2}, "<|im_end|>")
    assert (tokenizer.special_tokens, tokenizer.other_tokens) == (tuple(CONTROL), (THINK,))
    assert tokenizer.token_texts == dict(enumerate(CONTROL)) | {len(TOKENS) - 1: THINK}
    assert tokenizer.chat_template == CHAT


def test_special_tokens_are_tokens_or_text_as_the_caller_says(tokenizer):
    text = "in<|im_end|> the <think>"
    assert [TOKENS[number] for number in tokenizer.encode(text, special=True)] == [
        "in", "<|im_end|>", "Ġthe", "Ġ", "<think>",
    ]  # fmt: skip
    plain = tokenizer.encode(text, special=False)
    assert not {0, 1, 2, len(TOKENS) - 1} & set(plain) and tokenizer.decode(plain) == text
    assert tokenizer.encode("in the", special=True) == tokenizer.encode("in the", special=False)
    assert tokenizer.encode("", special=True) == []


def test_decoding_leaves_special_tokens_and_unknown_ids_out(tokenizer):
    ids = tokenizer.encode("<|im_start|>in grüßen 日本<|im_end|>", special=True)
    assert tokenizer.decode([*ids, 10_000]) == "in grüßen 日本"
    assert tokenizer.decode([]) == ""


def test_text_that_cannot_be_encoded(tokenizer):
    for special in (True, False):
        with pytest.raises(InputError, match="text: str 'a.*' cannot be read as Unicode"):
            tokenizer.encode("a\ud800", special=special)


def test_a_vocabulary_without_another_form_for_a_special_token_refuses_it_as_text():
    library = Tokenizer(models.WordLevel({"[UNK]": 0, "</s>": 1, "in": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(["[UNK]", "</s>"])
    tokenizer = DecoderTokenizer(library, eos_token="</s>")
    assert tokenizer.encode("in </s>", special=True) == [2, 1]
    assert tokenizer.encode("in out", special=False) == [2, 0]  # an unknown word is no special token
    with pytest.raises(InputError, match="spells the special token '</s>' and has no other form"):
        tokenizer.encode("in </s>", special=False)


def test_letters_that_are_added_tokens_are_letters_in_any_text():
    library = tokenizer_from_gguf(tokenizer_fields(), "x")
    library.add_tokens([AddedToken("ж", normalized=False), AddedToken("<sp>", normalized=False)])
    tokenizer = DecoderTokenizer(library, eos_token="<sp>")
    assert tokenizer.special_tokens == (*CONTROL, "<sp>") and tokenizer.other_tokens == (THINK, "ж")  # <sp> is an end
    letter = len(TOKENS)
    for special in (True, False):
        assert tokenizer.encode("fжr", special=special).count(letter) == 1
        assert (letter + 1 in tokenizer.encode("<sp>", special=special)) == special
    assert tokenizer.decode(tokenizer.encode("fжr", special=False)) == "fжr"


def test_a_folder_with_the_tokenizer_alone(folder):
    tokenizer = DecoderTokenizer.from_folder(folder)
    # Nothing names an end, but two special tokens are known to be some, as in a GGUF file.
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.chat_template) == (None, {0, 2}, None)
    # Neither cut nor padded, as its file would have it.
    assert len(tokenizer.encode("a the the the the", special=False)) == 5


def test_a_folder_with_everything(folder):
    write(folder, "tokenizer_config.json", bos_token={"content": "<|im_start|>"}, eos_token="<|im_end|>",
          chat_template="old")  # fmt: skip
    write(folder, "config.json", eos_token_id=7)
    assert DecoderTokenizer.from_folder(folder).eos_ids == {0, 2, 7}
    write(folder, "generation_config.json", do_sample=True)  # which says nothing of ends
    assert DecoderTokenizer.from_folder(folder).eos_ids == {0, 2, 7}
    write(folder, "generation_config.json", eos_token_id=[2, 0])
    tokenizer = DecoderTokenizer.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.chat_template) == (1, {0, 2}, "old")
    (folder / "chat_template.jinja").write_text(CHAT)
    assert DecoderTokenizer.from_folder(folder).chat_template == CHAT


def test_of_named_templates_the_default_is_taken(folder):
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    write(folder, "tokenizer_config.json", chat_template=templates)
    assert DecoderTokenizer.from_folder(folder).chat_template == "yes"
    write(folder, "tokenizer_config.json", chat_template=templates[:1])
    assert DecoderTokenizer.from_folder(folder).chat_template is None


def test_what_is_written_is_read_back(tokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    again = DecoderTokenizer.from_folder(tmp_path)
    assert again.to_json() == tokenizer.to_json() and again.special_tokens == tokenizer.special_tokens
    for special in (True, False):
        text = "In 1234 inns<|im_end|>"
        assert again.encode(text, special=special) == tokenizer.encode(text, special=special)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tokenizer_config.json", {"bos_token": "<s>"}, "bos_token '<s>' is not in the vocabulary of"),
        ("tokenizer_config.json", {"eos_token": 3}, "tokenizer_config.json: eos_token is 3, a text"),
        ("tokenizer_config.json", {"chat_template": 3}, "tokenizer_config.json: chat_template is neither a string"),
        ("generation_config.json", {"eos_token_id": "2"}, "generation_config.json: eos_token_id is '2', an id"),
        ("generation_config.json", {"eos_token_id": [2, -1]}, "eos_token_id is .2, -1., an id"),
        ("config.json", {"eos_token_id": 2**40}, r"eos ids \[1099511627776\] are not in the vocabulary"),
        ("config.json", {"eos_token_id": 100_000}, r"eos ids \[100000\] are not in the vocabulary"),
    ],
)
def test_broken_settings_are_named(folder, name, values, message):
    write(folder, name, **values)
    with pytest.raises(InputError, match=message):
        DecoderTokenizer.from_folder(folder)


def test_broken_files_are_named(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(InputError, match="chat_template.jinja: not UTF-8"):
        DecoderTokenizer.from_folder(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="tokenizer.json: not a tokenizer of the `tokenizers` library"):
        DecoderTokenizer.from_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="tokenizer.json: no such tokenizer file"):
        DecoderTokenizer.from_folder(folder)


def test_a_chat_template_in_a_gguf_file_is_a_text():
    with pytest.raises(InputError, match="tokenizer.chat_template is 3, a text is needed"):
        DecoderTokenizer.from_gguf(tokenizer_fields() | {"tokenizer.chat_template": 3})


PIECES = ["in", " the", "<|im_end|>", "<think>", "<THINK>", "a", " ", "x", "<a b>", "grüßen", "\n", "<|", "123", "Q"]


def library_tokenizer(extra=(), normalizer=None):
    """Of the tiny vocabulary; `extra` are added tokens."""
    library = tokenizer_from_gguf(tokenizer_fields(), "x")
    if normalizer is not None:
        library.normalizer = normalizer
    library.add_tokens(list(extra))
    return library


def with_gap():
    vocab = {token: number for number, token in enumerate(TOKENS)} | {"Q": len(TOKENS) + 9}
    library = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_tokens(["<a b>", "Q", "<THINK>"])
    return library


@pytest.mark.parametrize(
    "library",
    [
        library_tokenizer(),
        library_tokenizer([AddedToken("<a b>"), AddedToken("Q", normalized=True), AddedToken("x", single_word=True)]),
        library_tokenizer([AddedToken("<THINK>", lstrip=True, rstrip=True, normalized=False)]),
        library_tokenizer([AddedToken("<A B>", normalized=True), AddedToken("in")], normalizers.Lowercase()),
        # A vocabulary with a gap before its last id, which is an added token too.
        with_gap(),
    ],
)
def test_a_copy_that_shares_the_vocabulary_reads_as_one_of_its_own(library):
    """Marks are text to both, and what is no mark is a token to both."""
    shared, own = _sharing_copy(library), _json_copy(library)
    assert shared.get_added_tokens_decoder().keys() == own.get_added_tokens_decoder().keys()
    specials = [{n: token.special for n, token in each.get_added_tokens_decoder().items()} for each in (shared, own)]
    assert specials[0] == specials[1]
    flags = {n: token.special for n, token in library.get_added_tokens_decoder().items()}
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(PIECES, 8)) for _ in range(200)]
    for special in (True, False):
        shared.encode_special_tokens = own.encode_special_tokens = special
        for text in texts:
            assert shared.encode(text).ids == own.encode(text).ids, text
    assert {n: token.special for n, token in library.get_added_tokens_decoder().items()} == flags
