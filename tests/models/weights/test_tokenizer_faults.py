"""Hostile tokenizer.json: what the library cannot run is an error , and no text grows without end."""

import json

import pytest
from tokenizers import Tokenizer

from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.encoder.tokenizer import TextTokenizer, train_word_level
from qrag_jax.models.weights.tokenizer_faults import check_growth, named_faults, parse_tokenizer
from qrag_jax.types import InputError

FILE = json.loads(train_word_level(["mary went to the kitchen"]).to_json())


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def bomb(steps, letters=10):
    return {"type": "Sequence", "normalizers": [replace({"String": "a"}, "a" * letters)] * steps}


def read(**parts):
    return TextTokenizer(
        parse_tokenizer(json.dumps(FILE | parts).encode(), "evil/tokenizer.json"), "evil/tokenizer.json"
    )


def test_a_panic_of_the_library_is_an_error():
    template = FILE["post_processor"] | {"special_tokens": {}}
    with pytest.raises(InputError, match="evil/tokenizer.json: the tokenizer fails .no entry found for key"):
        read(post_processor=template)
    catastrophic = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = read(normalizer=None, pre_tokenizer=catastrophic)
    with pytest.raises(InputError, match="evil/tokenizer.json: the tokenizer fails .*retry-limit-in-match"):
        tokenizer.count("a" * 30 + "b")


def test_a_panic_while_a_file_is_read_is_an_error(tmp_path):
    """A merge of tokens shorter than the prefix that their words would go on with."""
    model = {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2},
        "merges": ["a b"],
        "continuing_subword_prefix": "../../x",
    }
    with pytest.raises(InputError, match="evil/tokenizer.json: the tokenizer fails .range"):
        read(model=model)
    (tmp_path / "tokenizer.json").write_text(json.dumps(FILE | {"model": model}))
    with pytest.raises(InputError, match="tokenizer.json: the tokenizer fails .range"):
        DecoderTokenizer.from_folder(tmp_path)


def test_a_vocabulary_without_its_unknown_token_is_an_error():
    values = FILE | {"model": FILE["model"] | {"unk_token": "absent"}}
    tokenizer = TextTokenizer(Tokenizer.from_str(json.dumps(values)), names={"unk_token": "[UNK]"})
    with pytest.raises(InputError, match="the tokenizer fails .WordLevel error: Missing"):
        tokenizer.ids(["unheard"])


@pytest.mark.parametrize(
    ("normalizer", "growth"),
    [
        (bomb(12), "1e.12"),
        ({"type": "Sequence", "normalizers": [bomb(2, 20)]}, "400"),
        (replace({"Regex": "x*"}, "y" * 256), "257"),
        (replace({"String": ""}, "y" * 257), "257"),
        ({"type": "Prepend", "prepend": "y" * 300}, "301"),
        ({"type": "Sequence", "normalizers": [replace({"String": "a"}, "a" * 10)] * 2_000}, "1e.300"),
    ],
)
def test_what_makes_a_text_too_long_is_not_run(tmp_path, normalizer, growth):
    with pytest.raises(InputError, match=f"evil/tokenizer.json: normalizer may make a text {growth} times as long"):
        read(normalizer=normalizer)
    (tmp_path / "tokenizer.json").write_text(json.dumps(FILE | {"normalizer": normalizer}))
    with pytest.raises(InputError, match=f"normalizer may make a text {growth} times as long"):
        DecoderTokenizer.from_folder(tmp_path)


def test_what_decodes_to_too_long_a_text_is_not_run():
    with pytest.raises(InputError, match="decoder may make a text 1e.06 times"):
        check_growth(json.dumps({"decoder": {"type": "Sequence", "decoders": bomb(6)["normalizers"]}}), "x")


def test_usual_steps_are_run():
    steps = [{"type": "NFKD"}, {"type": "Prepend", "prepend": "\u2581"}, replace({"String": " "}, "\u2581")]
    steps += [replace({"String": "``"}, '"'), replace({"Regex": " {2,}"}, "\u2581")]
    assert read(normalizer={"type": "Sequence", "normalizers": steps}).count("mary  went") == 1


def test_many_steps_that_tidy_up_are_run():
    """Each takes a character for the one it gives, so no number of them makes a text longer."""
    tidy = [replace({"Regex": regex}, "x") for regex in (r"\s+", "[“”]", " {2,}", "–", r"\n", "…", "[’‘]", "«", "»")]
    assert read(normalizer={"type": "Sequence", "normalizers": tidy}).count("mary went") == 1


@pytest.mark.parametrize("regex", ["x*", "", "(?=a)", "a|", "x{0,1}", "x{,2}", "^", r"\b", "()", "x??"])
def test_a_step_that_may_match_nothing_doubles_a_text(regex):
    steps = [replace({"Regex": regex}, "y")] * 9
    with pytest.raises(InputError, match="may make a text 512 times"):
        check_growth(json.dumps({"normalizer": {"type": "Sequence", "normalizers": steps}}), "x")


def test_other_exceptions_are_not_renamed():
    with pytest.raises(KeyError), named_faults("x"):
        raise KeyError("ours")


def test_an_id_beyond_any_vocabulary_is_refused_before_it_is_counted_to(tmp_path):
    """The library would write two thousand million holes."""
    values = FILE | {"model": FILE["model"] | {"vocab": FILE["model"]["vocab"] | {"rye": 2**31 - 1}}}
    with pytest.raises(InputError, match="evil/tokenizer.json: token 'rye' has id 2147483647, at most 16,777,216"):
        read(model=values["model"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match="token 'rye' has id 2147483647"):
        DecoderTokenizer.from_folder(tmp_path)


def test_a_named_token_with_half_a_character_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(FILE))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "\\ud83d"}')
    with pytest.raises(InputError, match="tokenizer fails .*surrogates not allowed"):
        DecoderTokenizer.from_folder(tmp_path)
