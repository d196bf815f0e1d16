"""Which tokens of a vocabulary open a row, end it, pad it and stand for unknown words."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from qrag_jax.files.whole_file import read_json
from qrag_jax.types import InputError

PAD, UNKNOWN, CLS, SEP = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
SPECIAL_TOKENS = (PAD, UNKNOWN, CLS, SEP)
ROLES: tuple[str, ...] = ("pad_token", "unk_token", "cls_token", "sep_token")  # as in tokenizer_config.json
_ROBERTA_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
_USUAL = {CLS: SPECIAL_TOKENS, "<s>": _ROBERTA_TOKENS}  # by the token that opens a row


def read_special_tokens(path: Path) -> dict[str, str]:
    """Special tokens by role in a `tokenizer_config.json`: strings, or objects with their `content`."""
    values = read_json(path)
    named = {role: values.get(role) for role in ROLES}
    named = {role: value.get("content") if isinstance(value, dict) else value for role, value in named.items()}
    for role, value in named.items():
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InputError(f"{path}: {role} is {value!r}, which is no Unicode text; copy the folder again")
    return {role: value for role, value in named.items() if isinstance(value, str)}


def find_special_tokens(
    tokenizer: Tokenizer, padding: Mapping[str, object], names: Mapping[str, str], source: str
) -> dict[str, tuple[str, int]]:
    """The special token and its id for each of `ROLES`.

    What the tokenizer puts around a text counts more than any name, then names, then what is usual. That a token is in
    the vocabulary says nothing: MPNet's holds BERT's special tokens beside its own.

    Args:
        padding: the padding section of its file, which names the padding token.
        names: special tokens by role, as `tokenizer_config.json` has them.
        source: names the tokenizer in errors.
    """
    around = tokenizer.encode("").tokens
    if len(around) not in (0, 2):
        raise InputError(f"{source}: puts {len(around)} tokens around a text; one before it and one after are needed")
    cls_token = around[0] if around else names.get("cls_token") or _usual_cls(tokenizer, source)
    usual_pad, usual_unknown, _, usual_sep = _USUAL.get(cls_token, SPECIAL_TOKENS)
    pad = names.get("pad_token") or str(padding.get("pad_token", usual_pad))
    unknown = names.get("unk_token") or getattr(tokenizer.model, "unk_token", None) or usual_unknown
    sep_token = around[1] if around else names.get("sep_token", usual_sep)
    tokens = (pad, unknown, cls_token, sep_token)
    ids = [tokenizer.token_to_id(token) for token in tokens]
    missing = [token for token, token_id in zip(tokens, ids, strict=True) if token_id is None]
    if missing:
        raise InputError(
            f"{source}: the vocabulary has no {', '.join(missing)}; tokenizers with {', '.join(SPECIAL_TOKENS)} or "
            f"{', '.join(_ROBERTA_TOKENS)} are read, others where a tokenizer_config.json names these four"
        )
    pairs = [(token, token_id) for token, token_id in zip(tokens, ids, strict=True) if token_id is not None]
    return dict(zip(ROLES, pairs, strict=True))


def _usual_cls(tokenizer: Tokenizer, source: str) -> str:
    there = [token for token in _USUAL if tokenizer.token_to_id(token) is not None]
    if len(there) > 1:
        raise InputError(
            f"{source}: has {' and '.join(there)}: name its cls_token in a tokenizer_config.json beside it"
        )
    return there[0] if there else CLS
