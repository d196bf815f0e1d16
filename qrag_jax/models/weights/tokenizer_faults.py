"""Reads a foreign `tokenizer.json`; one that would harm the library that runs it (panics, endless texts) is refused."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from qrag_jax.files.reading import read_limited
from qrag_jax.types import InputError

_MAX_BYTES = 2**28  # the largest vocabularies have an eighth of it
_MAX_ID = 2**24  # the largest vocabularies have a sixtieth of it
_MAX_GROWTH = 256  # of a text, by what its parts are replaced with; real ones have below 10
# Repetition from zero, choices, places between characters, looks around (which have a `?`), back references.
_MAY_TAKE_NONE = re.compile(r"[*?|^$]|\{\s*[0,]|\(\s*\)|\\[bBAzZGKyYkg1-9]")


@contextmanager
def named_faults(source: str) -> Iterator[None]:
    """Errors of the `tokenizers` library as ours."""
    try:
        yield
    except BaseException as error:  # a panic is no `Exception`
        is_theirs = type(error) is Exception or type(error).__name__ == "PanicException"
        if is_theirs or isinstance(error, UnicodeEncodeError):
            raise InputError(
                f"the tokenizer fails ({str(error)[:200]}); tokenizer.json is damaged or hostile", file=source
            ) from error
        raise


def read_tokenizer(path: Path) -> Tokenizer:
    """Reads a `tokenizer.json`."""
    if not path.is_file():
        raise InputError("no such tokenizer file (a tokenizer.json of the `tokenizers` library)", file=path)
    return parse_tokenizer(read_limited(path, _MAX_BYTES), str(path))


def parse_tokenizer(content: bytes, source: str) -> Tokenizer:
    """Reads the content of a `tokenizer.json`; `source` names it in errors."""
    with named_faults(source):
        try:
            return Tokenizer.from_buffer(content)  # `from_str` raises a bare Exception for every parse error
        except ValueError as error:
            raise InputError(f"not a tokenizer of the `tokenizers` library: {error}", file=source) from error


def checked_copy(tokenizer: Tokenizer, source: str) -> Tokenizer:
    """A copy without truncation and padding of a tokenizer that may come from anywhere."""
    check_ids(tokenizer, source)
    content = tokenizer.to_str()
    check_growth(content, source)
    return plain_copy(content)


def plain_copy(content: str) -> Tokenizer:
    """The tokenizer of the content of a `tokenizer.json`, without truncation and padding."""
    tokenizer = Tokenizer.from_str(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def check_ids(tokenizer: Tokenizer, source: str) -> None:
    """Refuses an id beyond any vocabulary: to write a tokenizer down the library counts up to it, for minutes."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    token = max(ids, key=lambda token: ids[token], default="")
    if ids.get(token, 0) > _MAX_ID:
        raise InputError(
            f"token {token!r:.80} has id {ids[token]}, at most {_MAX_ID:,} is read; do not trust this model",
            file=source,
        )


def check_vocab(num_ids: int, vocab_size: int, path: Path) -> None:
    """Refuses the tokenizer of another model. Fewer ids are usual: tables are padded to round sizes."""
    if num_ids > vocab_size:
        raise InputError(
            f"{num_ids} ids, but the model has vocab_size {vocab_size}; the tokenizer belongs to another model",
            file=path,
        )


def check_growth(content: str, source: str) -> None:
    """Refuses a tokenizer that makes a text too long: 12 steps of 10 letters for one make 10^12 of it.

    Args:
        content: of a `tokenizer.json`, which the library has read.
    """
    values = json.loads(content)
    for part in ("normalizer", "decoder"):
        growth = _growth(values.get(part))
        if growth > _MAX_GROWTH:
            raise InputError(
                f"{part} may make a text {growth:.3g} times as long, at most {_MAX_GROWTH} is run; do not "
                "trust this model",
                file=source,
            )


def _growth(step: Any) -> float:
    """The number of characters that a step may make of one; forms and bytes of Unicode are bounded by the library."""
    if not isinstance(step, Mapping):
        return 1.0
    growth = 1.0
    for inner in step.get("normalizers") or step.get("decoders") or ():
        growth = min(growth * _growth(inner), 1e300)
    if step.get("type") == "Prepend":
        growth *= 1 + len(step["prepend"])
    if step.get("type") == "Replace":
        pattern, content = step["pattern"], step["content"]
        if "String" in pattern:
            growth *= max(1.0, len(content) / len(pattern["String"] or " "))
        else:  # what matches where there is nothing does so before every character
            growth *= max(1, len(content) + (not _takes_a_character(pattern["Regex"])))
    return growth


def _takes_a_character(regex: str) -> bool:
    """True if every match of a regular expression has a character; False if this is not obvious."""
    return bool(regex) and _MAY_TAKE_NONE.search(regex) is None
