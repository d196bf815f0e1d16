"""The tokenizer that the metadata of a GGUF file describes: byte-level BPE with a named pre-tokenizer, or WordPiece.

A GGUF file has the vocabulary, the merges and a name of the rule that cuts text into words before the merges; the
rules themselves stand in llama.cpp. Those of four names are here. A wrong rule gives wrong ids and no error, so every
other name is refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.pre_tokenizers import PreTokenizer

from qrag_jax.types import InputError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_KEY = "tokenizer.ggml."
_MARKED = re.compile(r"\[.+\]")  # special tokens of BERT
# Ends of an answer or a text; a model may have learned to write another one than its file names as eos.
KNOWN_ENDS = frozenset({"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"})
# Texts that llama.cpp reads as marks also where the file calls them ordinary.
_LOOKS_LIKE_MARK = re.compile(r"<[|\uff5c][^<>]+[|\uff5c]>|_?<EOT>|</?s>|<(?:end_of|start_of|fim)[\w-]*>|\[/?INST\]")


def _word_split(digits: str) -> Callable[[], PreTokenizer]:
    """Words as GPT-4's rule cuts them: contractions of any case, a mark with letters after it, digits, line ends."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), _bytes(use_regex=False)]
    )


def _bytes(use_regex: bool) -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


_PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "gpt-2": lambda: _bytes(use_regex=True),
    # Digits stand alone.
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _bytes(use_regex=True)]),
    "qwen2": _word_split(r"\p{N}"),
    "llama-bpe": _word_split(r"\p{N}{1,3}"),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """Builds the tokenizer; control and user-defined tokens are read whole, the control ones are special."""
    model, name = metadata.get(_KEY + "model"), metadata.get(_KEY + "pre")
    if model != "gpt2":
        raise InputError(f"{_KEY}model is {model!r}, only 'gpt2' (byte-level BPE) is read", file=source)
    if not isinstance(name, str) or name not in _PRE_TOKENIZERS:
        raise InputError(f"{_KEY}pre is {name!r}, only {', '.join(_PRE_TOKENIZERS)} are read", file=source)
    tokens = _texts(metadata, "tokens", source)
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise InputError(f"{_KEY}tokens names {len(tokens) - len(vocab)} tokens twice", file=source)
    _check_bytes(vocab, source)
    merges = _merges(_texts(metadata, "merges", source), vocab, source)
    # Llama 3 takes a word of the vocabulary whole, whatever the merges would make of it.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=name == "llama-bpe"))
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[name]()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, _kinds(metadata, len(tokens), source), strict=True)
    added = {token: kind for token, kind in kinds if kind in (_CONTROL, _USER_DEFINED)}
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=added[token] == _CONTROL) for token in added])
    return tokenizer


def word_pieces_from_gguf(metadata: Mapping[str, Any], source: str) -> tuple[Tokenizer, dict[str, str]]:
    """Builds the WordPiece tokenizer of an encoder (`tokenizer.ggml.model` "bert"), and names its special tokens.

    A file marks the beginning of a word where a vocabulary of BERT marks its continuation: `▁play`, `ing` in place of
    `play`, `##ing`. Text is lower-cased if no token has a capital letter.

    Returns:
        The tokenizer, which puts [CLS] and [SEP] around a text; special tokens by `pad_token`, `unk_token`,
        `cls_token`, `sep_token`.
    """
    tokens = _texts(metadata, "tokens", source)
    words = [_as_in_bert(token) for token in tokens]
    vocab = {token: number for number, token in enumerate(words)}
    if len(vocab) != len(words):
        raise InputError(f"{_KEY}tokens names {len(words) - len(vocab)} tokens twice", file=source)
    keys = {"pad_token": "padding", "unk_token": "unknown", "sep_token": "seperator"}  # codespell:ignore
    ids = {role: _id(metadata, key, len(tokens), source) for role, key in keys.items()}
    ids["cls_token"] = _id(metadata, "cls", len(tokens), source)
    ids["cls_token"] = _id(metadata, "bos", len(tokens), source) if ids["cls_token"] is None else ids["cls_token"]
    usual = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names = {role: usual[role] if number is None else words[number] for role, number in ids.items()}
    if missing := [name for name in names.values() if name not in vocab]:
        raise InputError(f"{_KEY}tokens: no token {', '.join(missing)}; the file has no whole tokenizer", file=source)
    is_lower = not any(word != word.lower() for word in words if not _MARKED.fullmatch(word))
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token=names["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=is_lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = names["cls_token"], names["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, vocab[token]) for token in (first, last)],
    )
    special = [token for token in words if _MARKED.fullmatch(token) and "unused" not in token]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer, names


def _as_in_bert(token: str) -> str:
    if _MARKED.fullmatch(token):
        return token
    return token[1:] if token.startswith("\u2581") else f"##{token}"


def ends_of_gguf(metadata: Mapping[str, Any], source: str) -> tuple[int | None, int | None, frozenset[int]]:
    """Ids of bos and eos (None without one), and of all tokens that end an answer.

    Those are the named ends of a text, a turn and a message, and control tokens that are known to be ends: files name
    one or two where the models' makers stop at three.
    """
    tokens = _texts(metadata, "tokens", source)
    ids = {role: _id(metadata, role, len(tokens), source) for role in ("bos", "eos", "eot", "eom")}
    kinds = _kinds(metadata, len(tokens), source)
    known = {number for number, token in enumerate(tokens) if kinds[number] == _CONTROL and token in KNOWN_ENDS}
    named = {number for role, number in ids.items() if role != "bos" and number is not None}
    return ids["bos"], ids["eos"], frozenset(named | known)


def marks_of_gguf(metadata: Mapping[str, Any], source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Tokens that are read whole wherever a text spells them, by id: marks of a conversation, and others."""
    tokens = _texts(metadata, "tokens", source)
    kinds, (bos_id, _, ends) = _kinds(metadata, len(tokens), source), ends_of_gguf(metadata, source)
    special: dict[int, str] = {}
    other: dict[int, str] = {}
    for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind in (_UNKNOWN, _CONTROL) or number in ends or number == bos_id or _LOOKS_LIKE_MARK.fullmatch(token):
            special[number] = token
        elif kind == _USER_DEFINED:
            other[number] = token
    return special, other


def template_of_gguf(metadata: Mapping[str, Any], source: str) -> str | None:
    """The chat template of a file; None without one."""
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise InputError(f"tokenizer.chat_template is {template!r:.100}, a text is needed", file=source)
    return template


def _id(metadata: Mapping[str, Any], role: str, size: int, source: str) -> int | None:
    key = f"{_KEY}{role}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < size:
        raise InputError(f"{key} is {value!r}, an id below {size} is needed", file=source)
    return value


def _texts(metadata: Mapping[str, Any], name: str, source: str) -> Sequence[str]:
    values = metadata.get(_KEY + name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise InputError(f"{_KEY}{name}: a list of texts is needed; the file has no whole tokenizer", file=source)
    try:
        "".join(values).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{_KEY}{name}: contains half a character ({error.reason}); get it again", file=source
        ) from error
    return values


def _kinds(metadata: Mapping[str, Any], size: int, source: str) -> list[int]:
    """The type of every token; ordinary words where the file has no types."""
    values = metadata.get(_KEY + "token_type")
    if values is None:
        return [_NORMAL] * size
    kinds = np.asarray(values)
    if kinds.ndim != 1 or kinds.dtype.kind not in "iu":
        raise InputError(f"{_KEY}token_type is {values!r:.100}, a list of whole numbers is needed", file=source)
    if len(kinds) != size:
        raise InputError(f"{_KEY}token_type has {len(kinds)} entries for {size} tokens", file=source)
    return kinds.tolist()


def _check_bytes(vocab: Mapping[str, int], source: str) -> None:
    """A byte that has no token would be left out of a text without a word.

    Control characters and what Unicode has not assigned may lack theirs, as in SmolLM2's vocabulary.
    """
    letters = _bytes(use_regex=False).pre_tokenize_str
    # Every byte of ASCII's text, and each that can open or continue a longer character.
    assigned = [*range(0x80, 0x800), *range(0x800, 0xD800, 0x40), *range(0xE000, 0x40000, 0x1000), 0xE0100]
    text = "\t\n\r" + "".join(map(chr, [*range(32, 127), *assigned]))
    needed = {letter for piece, _ in letters(text) for letter in piece}
    if missing := sorted(needed - vocab.keys()):
        raise InputError(
            f"{_KEY}tokens: no token for {len(missing)} of the bytes that texts are made of "
            f"({', '.join(map(repr, missing[:5]))} in its letters); the file has no whole tokenizer",
            file=source,
        )


def _merges(lines: Sequence[str], vocab: Mapping[str, int], source: str) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(lines):
        left, space, right = line.partition(" ")
        if not space or left not in vocab or right not in vocab or left + right not in vocab:
            raise InputError(
                f"{_KEY}merges: entry {number} is {line!r:.80}; expected two tokens whose concatenation is also a "
                "token; get the file again",
                file=source,
            )
        merges.append((left, right))
    return merges
