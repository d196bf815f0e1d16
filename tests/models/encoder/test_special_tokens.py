import json

import pytest
from tokenizers import Tokenizer, models, processors

from qrag_jax.models.encoder.tokenizer import find_special_tokens, read_special_tokens
from qrag_jax.types import InputError

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
ROBERTA = ["<pad>", "<unk>", "<s>", "</s>"]


def make(vocabulary, around=None, unknown=None):
    """A tokenizer of whole texts; `around` is put before and after one."""
    vocabulary = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown or "none"))
    if around:
        pairs = [(token, vocabulary[token]) for token in around]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join([around[0], "$A", *around[1:]]), special_tokens=pairs
        )
    return tokenizer


def find(tokenizer, padding=None, **names):
    return [token for token, _ in find_special_tokens(tokenizer, padding or {}, names, "here").values()]


def test_what_is_put_around_a_text_decides():
    both = BERT + ROBERTA
    assert find(make(both, ["[CLS]", "[SEP]"], "[UNK]")) == BERT
    assert find(make(both, ["<s>", "</s>"], "<unk>")) == ROBERTA
    assert find(make(both, ["<s>", "</s>"], "[UNK]")) == ["<pad>", "[UNK]", "<s>", "</s>"]
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "<unk>"}
    assert find(make(both, ["<s>", "</s>"], "[UNK]"), **named) == ["[PAD]", "<unk>", "<s>", "</s>"]


def test_ids_are_those_of_the_vocabulary():
    found = find_special_tokens(make(ROBERTA, ["<s>", "</s>"], "<unk>"), {}, {}, "here")
    assert found == {
        "pad_token": ("<pad>", 0),
        "unk_token": ("<unk>", 1),
        "cls_token": ("<s>", 2),
        "sep_token": ("</s>", 3),
    }


def test_the_padding_section_names_the_padding():
    tokenizer = make([*ROBERTA, "<fill>"], ["<s>", "</s>"], "<unk>")
    assert find(tokenizer, {"pad_token": "<fill>"})[0] == "<fill>"
    assert find(tokenizer, {"pad_token": "<fill>"}, pad_token="<pad>")[0] == "<pad>"


def test_without_a_post_processor_names_or_the_usual_ones_count():
    assert find(make(BERT, unknown="[UNK]")) == BERT
    assert find(make(ROBERTA, unknown="<unk>")) == ROBERTA
    odd = make(["<bos>", "<eos>", "<no>", "<fill>"], unknown="<no>")
    names = {"cls_token": "<bos>", "sep_token": "<eos>", "pad_token": "<fill>"}
    assert find(odd, **names) == ["<fill>", "<no>", "<bos>", "<eos>"]
    with pytest.raises(InputError, match=r"here: has \[CLS\] and <s>: name its cls_token in a tokenizer_config.json"):
        find(make(BERT + ROBERTA, unknown="[UNK]"))
    assert find(make(BERT + ROBERTA, unknown="[UNK]"), cls_token="<s>") == ["<pad>", "[UNK]", "<s>", "</s>"]


def test_tokens_that_are_missing_are_named_together():
    with pytest.raises(InputError, match=r"here: the vocabulary has no <pad>, none; tokenizers with"):
        find(make(["<s>", "</s>"], ["<s>", "</s>"]))
    with pytest.raises(InputError, match="here: puts 1 tokens around a text; one before it and one after are needed"):
        find(make(BERT, ["[CLS]"], unknown="[UNK]"))


def test_names_of_a_file(tmp_path):
    path = tmp_path / "tokenizer_config.json"
    path.write_text(
        json.dumps({"cls_token": {"content": "<s>", "special": True}, "pad_token": "<pad>", "unk_token": None})
    )
    assert read_special_tokens(path) == {"cls_token": "<s>", "pad_token": "<pad>"}
    path.write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: not valid JSON"):
        read_special_tokens(path)
    path.write_text("[]")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: expected a JSON object"):
        read_special_tokens(path)
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"tokenizer_config\.json: not valid JSON"):
        read_special_tokens(path)
    path.write_text(json.dumps({"pad_token": {"content": "\ud800"}}))
    with pytest.raises(InputError, match=r"tokenizer_config\.json: pad_token is '.ud800', which is not Unicode text"):
        read_special_tokens(path)
