"""Text to the token ids of a decoder and back, through `tokenizers`.

Text that comes from a user or a document may spell a special token, such as the one that ends a turn of a
conversation. The caller decides in every call whether it counts as one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders

from qrag_jax.files.reading import MAX_CONFIG_BYTES, read_text_limited
from qrag_jax.files.whole_file import read_json
from qrag_jax.models.gguf.tokenizer import KNOWN_ENDS, ends_of_gguf, template_of_gguf, tokenizer_from_gguf
from qrag_jax.models.weights.tokenizer_faults import checked_copy, named_faults, plain_copy, read_tokenizer
from qrag_jax.types import InputError, UsageError


class DecoderTokenizer:
    """The tokenizer of a decoder. Immutable; safe to share.

    It adds no tokens: the chat template contains those that open a conversation.

    Attributes:
        vocab_size: number of ids, added tokens counted.
        bos_id: of the token that opens a text; None without one.
        eos_ids: of the tokens that end an answer; empty for a model that never ends by itself.
        bos_token, eos_token: their texts, for chat templates; None without one. Of several ends, the tokenizer's own.
        special_tokens: texts that `encode(text, special=True)` reads as one token each and that are marks of a
            conversation: those marked special in the file, and those that end an answer; by id.
        other_tokens: further texts that it reads as one token each, such as `<think>`; by id.
        token_texts: id -> text of both.
        chat_template: jinja source; None without one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        eos_ids: Iterable[int] = (),
        chat_template: str | None = None,
        source: str = "tokenizer",
        is_built_here: bool = False,
    ) -> None:
        """Checks and copies `tokenizer` and switches its truncation and padding off.

        Args:
            tokenizer: of the `tokenizers` library.
            bos_token: the token that opens a text.
            eos_token: the token that ends an answer.
            eos_ids: further ids that end an answer.
            is_built_here: nothing of it comes from elsewhere but the vocabulary, and nobody else holds it: it is taken
                as it is, which saves a second for a large one.
        """
        self._source = source
        with named_faults(source):
            self._tokenizer = tokenizer if is_built_here else checked_copy(tokenizer, source)
            self._plain = _plain_copy(self._tokenizer)
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.bos_token, self.eos_token, self.chat_template = bos_token, eos_token, chat_template
        self.bos_id = None if bos_token is None else self._id(bos_token, "bos_token", source)
        ends = set(eos_ids) | ({self._id(eos_token, "eos_token", source)} if eos_token is not None else set())
        if strange := sorted(number for number in ends if not self._has(number)):
            raise InputError(f"eos ids {strange} are not in the vocabulary of {self.vocab_size} tokens", file=source)
        self.eos_ids = frozenset(ends)
        added = sorted(self._tokenizer.get_added_tokens_decoder().items())
        special = {number for number, token in added if token.special or number in ends}
        self.token_texts = {number: token.content for number, token in added}
        self.special_tokens = tuple(token.content for number, token in added if number in special)
        self.other_tokens = tuple(token.content for number, token in added if number not in special)
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._never_plain = {n: token.content for n, token in added if _is_mark(token) and token.content != unknown}

    @classmethod
    def from_folder(cls, folder: str | Path) -> "DecoderTokenizer":
        """Reads `tokenizer.json`, and beside it what there is of `tokenizer_config.json` (bos, eos, chat template),
        `chat_template.jinja` (before the one in the config) and `generation_config.json` (ids that end an answer;
        special tokens that are known to be ends do so too, as in GGUF files).
        """
        folder = Path(folder)
        tokenizer = read_tokenizer(folder / "tokenizer.json")
        settings = _json_beside(folder / "tokenizer_config.json")
        return cls(
            tokenizer,
            bos_token=_token_text(settings, "bos_token", folder),
            eos_token=_token_text(settings, "eos_token", folder),
            eos_ids=[*_eos_ids(folder), *_known_ends(tokenizer)],
            chat_template=_chat_template(settings, folder),
            source=str(folder),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], source: str = "GGUF") -> "DecoderTokenizer":
        """Builds the tokenizer that the metadata of a GGUF file (`tokenizer.ggml.*`) describes."""
        tokenizer = tokenizer_from_gguf(metadata, source)
        bos_id, eos_id, ends = ends_of_gguf(metadata, source)
        return cls(
            tokenizer,
            bos_token=None if bos_id is None else tokenizer.id_to_token(bos_id),
            eos_token=None if eos_id is None else tokenizer.id_to_token(eos_id),
            eos_ids=ends,
            chat_template=template_of_gguf(metadata, source),
            source=source,
            is_built_here=True,
        )

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids of a text, whole, nothing put before or after it.

        Args:
            special: texts of special tokens are read as those tokens; False keeps them plain text, as data needs it.
        """
        try:
            with named_faults(self._source):
                ids = (self._tokenizer if special else self._plain).encode(text, add_special_tokens=False).ids
        except TypeError as error:
            raise InputError(f"text: {type(text).__name__} {text!r:.60} cannot be read as Unicode text") from error
        if not special and (found := self._never_plain.keys() & set(ids)):
            names = ", ".join(repr(self._never_plain[number]) for number in sorted(found))
            raise InputError(f"text: spells the special token {names} and has no other form here: change the text")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens, and ids beyond the vocabulary, are left out."""
        with named_faults(self._source):
            return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    @property
    def is_of_bytes(self) -> bool:
        """Every token is known to be certain bytes of UTF-8, wherever it stands: `spellings` tells them."""
        return isinstance(self._tokenizer.decoder, decoders.ByteLevel)

    def spellings(self) -> list[bytes | None]:
        """The bytes of every token, by id; None for special tokens, other marks and ids without a token."""
        if not self.is_of_bytes:
            raise UsageError(f"grammar: {self._source}: only byte-level vocabularies can be held to one")
        found: list[bytes | None] = [None] * self.vocab_size
        for letters, number in self._tokenizer.get_vocab(with_added_tokens=False).items():
            if number < self.vocab_size and all(letter in _BYTE_OF_LETTER for letter in letters):
                found[number] = bytes(_BYTE_OF_LETTER[letter] for letter in letters)
        for number, token in self._tokenizer.get_added_tokens_decoder().items():
            if number < self.vocab_size:
                found[number] = None if _is_mark(token) or number in self.eos_ids else token.content.encode()
        return found

    def to_json(self) -> str:
        """The content of a `tokenizer.json` without truncation and padding."""
        return self._tokenizer.to_str(pretty=False)

    def _has(self, number: int) -> bool:
        return number < 2**32 and self._tokenizer.id_to_token(number) is not None

    def _id(self, token: str, role: str, source: str) -> int:
        with named_faults(source):
            number = self._tokenizer.token_to_id(token)
        if number is None:
            raise InputError(f"{role} {token!r} is not in the vocabulary of {self.vocab_size} tokens", file=source)
        return number


def _byte_letters() -> dict[str, int]:
    """Letter -> byte, as GPT-2's byte-level vocabularies write bytes: those that print as themselves, then the rest."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printed)]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_letters()


def _plain_copy(tokenizer: Tokenizer) -> Tokenizer:
    """One that reads no mark in a text: all are made special, and special ones are encoded as text."""
    plain = _sharing_copy(tokenizer)
    if _contents(plain) != _contents(tokenizer):
        plain = _json_copy(tokenizer)  # ids beyond the vocabulary with gaps cannot be given again
    plain.encode_special_tokens = True
    return plain


def _contents(tokenizer: Tokenizer) -> dict[int, str]:
    return {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}


def _sharing_copy(tokenizer: Tokenizer) -> Tokenizer:
    """A copy with the same model in memory: a vocabulary of 150,000 tokens with its merges takes 90 MB."""
    plain: Any = Tokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer"):
        if getattr(tokenizer, part) is not None:
            setattr(plain, part, getattr(tokenizer, part))
    added = [token for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    for token in added:
        token.special |= _is_mark(token)
    plain.add_tokens(added)
    return plain


def _json_copy(tokenizer: Tokenizer) -> Tokenizer:
    values = json.loads(tokenizer.to_str())
    for token in values["added_tokens"]:
        token["special"] |= len(token["content"]) > 1
    return plain_copy(json.dumps(values))


def _is_mark(token: AddedToken) -> bool:
    """False for letters that a vocabulary holds as added tokens: they are read as such in any text."""
    return token.special or len(token.content) > 1


def _json_beside(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _token_text(settings: Mapping[str, Any], role: str, folder: Path) -> str | None:
    value = settings.get(role)
    value = value.get("content") if isinstance(value, dict) else value
    if value is not None and not isinstance(value, str):
        raise InputError(f"{folder / 'tokenizer_config.json'}: {role} is {value!r}, a text is needed")
    return value


def _eos_ids(folder: Path) -> list[int]:
    """The ids in `generation_config.json`, or in `config.json` if it has none."""
    path = folder / "generation_config.json"
    value = _json_beside(path).get("eos_token_id")
    if value is None:
        path = folder / "config.json"
        value = _json_beside(path).get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(number) is int and number >= 0 for number in ids):
        raise InputError(f"eos_token_id is {value!r}, an id or a list of ids is needed", file=path)
    return ids


def _known_ends(tokenizer: Tokenizer) -> list[int]:
    added = tokenizer.get_added_tokens_decoder().items()
    return [number for number, token in added if token.special and token.content in KNOWN_ENDS]


def _chat_template(settings: Mapping[str, Any], folder: Path) -> str | None:
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        try:
            return read_text_limited(beside, MAX_CONFIG_BYTES)
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 ({error}); copy it again", file=beside) from error
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise InputError(
            f"{folder / 'tokenizer_config.json'}: chat_template is neither a string nor a list with a 'default'"
        )
    return value
