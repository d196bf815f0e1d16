"""Text to token tables through `tokenizers`, with the window as a parameter and every cut counted.

Tokenizer files contain truncation and padding (MiniLM's cuts at 128 tokens and pads to 128). Both are switched off
here, so the file never cuts a text silently.

A row is `[CLS] text [SEP]`. RoBERTa, XLM-RoBERTa and MPNet call these two <s> and </s>; we say [CLS] and [SEP] of all.

`SpecialTokens` names the tokens that begin, end and pad a row, and the one for unknown words.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from qrag_jax.files.whole_file import read_json
from qrag_jax.models.weights.tokenizer_faults import checked_copy, named_faults, read_tokenizer
from qrag_jax.types import InputError, UsageError

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
            raise InputError(f"{role} is {value!r}, which is not Unicode text; copy the folder again", file=path)
    return {role: value for role, value in named.items() if isinstance(value, str)}


def find_special_tokens(
    tokenizer: Tokenizer, padding: Mapping[str, object], names: Mapping[str, str], source: str
) -> dict[str, tuple[str, int]]:
    """The special token and its id for each of `ROLES` that the tokenizer has.

    The tokens that the tokenizer puts around a text decide first, then names, then the usual ones. Being in the
    vocabulary is not enough: MPNet's vocabulary contains BERT's special tokens too. A tokenizer that puts one token
    behind a text and none before it (Qwen3-Embedding) has no `cls_token`, and one of bytes no `unk_token`.

    Args:
        padding: the padding section of its file, which names the padding token.
        names: special tokens by role, as `tokenizer_config.json` has them.
        source: names the tokenizer in errors.
    """
    around = tokenizer.encode("").tokens
    is_behind = len(around) == 1 and tokenizer.encode("a").tokens[-1] == around[0]
    if len(around) not in (0, 2) and not is_behind:
        raise InputError(
            f"puts {len(around)} tokens around a text; one before it and one after are needed, or one after it",
            file=source,
        )
    cls_token = around[0] if around else names.get("cls_token") or _usual_cls(tokenizer, source)
    usual_pad, usual_unknown, _, usual_sep = _USUAL.get(cls_token, SPECIAL_TOKENS)
    sep_token = around[-1] if around else names.get("sep_token", usual_sep)
    pad = names.get("pad_token") or str(padding.get("pad_token", sep_token if is_behind else usual_pad))
    unknown = names.get("unk_token") or getattr(tokenizer.model, "unk_token", None) or usual_unknown
    tokens = (pad, unknown, None if is_behind else cls_token, sep_token)
    ids = {token: number for token in tokens if token and (number := tokenizer.token_to_id(token)) is not None}
    may_lack = unknown if isinstance(tokenizer.model, models.BPE) and is_behind else None
    if missing := [token for token in tokens if token and token not in ids and token != may_lack]:
        raise InputError(
            f"the vocabulary has no {', '.join(missing)}; tokenizers with {', '.join(SPECIAL_TOKENS)} or "
            f"{', '.join(_ROBERTA_TOKENS)} are read, others where a tokenizer_config.json names these four",
            file=source,
        )
    return {role: (token, ids[token]) for role, token in zip(ROLES, tokens, strict=True) if token and token in ids}


def _usual_cls(tokenizer: Tokenizer, source: str) -> str:
    there = [token for token in _USUAL if tokenizer.token_to_id(token) is not None]
    if len(there) > 1:
        raise InputError(
            f"has {' and '.join(there)}: name its cls_token in a tokenizer_config.json next to it", file=source
        )
    return there[0] if there else CLS


_NUM_SHOWN = 60
_CHARS_PER_TOKEN = 4  # of English
_BLANK, _KNOWN, _SPELLED = range(3)
_WHOLE = re.compile("[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")  # Han


@dataclass(frozen=True)
class TokenTable:
    """Padded rows `[CLS] text [SEP]` of several texts.

    Attributes:
        tokens: int32 [n, L], padded on the right with the pad id.
        lengths: int32 [n], special tokens counted.
        num_texts_cut: texts that lost at least one token.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    num_texts_cut: int

    @property
    def counted(self) -> tuple[int, int, int]:
        """(texts, tokens, cut texts), as `TextCounts.plus` takes them."""
        return len(self.lengths), int(self.lengths.sum()), self.num_texts_cut


class TextTokenizer:
    """A tokenizer whose rows are `[CLS] text [SEP]`, or `text [SEP]` without a [CLS]. Immutable; safe to share.

    As in transformers, a special token that is written out in a text ("[SEP]") is read as that token. Several texts in
    one row, as in the states of text towers, are joined by one [SEP]; RoBERTa was pre-trained with two between texts.

    Attributes:
        special_tokens: the special tokens by `pad_token`, `unk_token`, `cls_token`, `sep_token`, as far as there are.
        pad_id, sep_id: their ids.
        cls_id: None where no token opens a row.
        unknown_id: -1 where every text has tokens.
        num_special: tokens of a row that are not of its text.
        vocab_size: number of ids, added tokens counted.
    """

    def __init__(self, tokenizer: Tokenizer, source: str = "tokenizer", names: Mapping[str, str] | None = None) -> None:
        """Copies `tokenizer` and switches its truncation and padding off.

        Args:
            tokenizer: of the `tokenizers` library. The tokens that it puts around a text are [CLS] and [SEP].
            names: special tokens by role, as far as `tokenizer_config.json` has them.
        """
        self._source = source
        with named_faults(source):
            self._tokenizer = checked_copy(tokenizer, source)
            found = find_special_tokens(self._tokenizer, tokenizer.padding or {}, names or {}, source)
        self.special_tokens = {role: token for role, (token, _) in found.items()}
        self.pad_id, self.sep_id = found["pad_token"][1], found["sep_token"][1]
        self.unknown_id = found["unk_token"][1] if "unk_token" in found else -1
        self.cls_id = found["cls_token"][1] if "cls_token" in found else None
        self._opening = [] if self.cls_id is None else [self.cls_id]
        self.num_special = len(self._opening) + 1
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_file(cls, path: str | Path, marks: Sequence[str] = ()) -> "TextTokenizer":
        """Reads a `tokenizer.json`, and names of special tokens from the `tokenizer_config.json` of the same folder.

        Args:
            marks: tokens of its vocabulary that are read as one token each, wherever they are written.
        """
        path = Path(path)
        beside = path.with_name("tokenizer_config.json")
        tokenizer = read_tokenizer(path)
        if missing := [mark for mark in marks if tokenizer.token_to_id(mark) is None]:
            raise InputError(f"the vocabulary has no {', '.join(map(repr, missing))}", file=path)
        tokenizer.add_special_tokens([*marks])
        return cls(tokenizer, str(path), read_special_tokens(beside) if beside.is_file() else None)

    def to_json(self) -> str:
        """The content of a `tokenizer.json` without truncation and padding."""
        return self._tokenizer.to_str(pretty=False)

    def ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text (int32), whole and without special tokens."""
        return [np.asarray(encoding.ids, np.int32) for encoding in self._encode_batch(texts, offsets=False)]

    def encode(
        self, texts: Sequence[str], window: int, *, strict: bool = False, length: int | None = None
    ) -> TokenTable:
        """Rows `[CLS] text [SEP]` of at most `window` tokens, padded to the longest of them.

        Args:
            texts: the texts; an empty one becomes `[CLS] [SEP]`.
            window: most tokens of a row, special tokens counted. The end of a longer text is cut and counted.
            strict: a longer text is an error instead.
            length: pad to this many tokens instead of to the longest row; at least `window` of them are needed when a
                text can be that long.
        """
        return self.table(self.ids(texts), window, strict=strict, length=length, texts=texts)

    def table(
        self,
        ids: Sequence[np.ndarray],
        window: int,
        *,
        strict: bool = False,
        length: int | None = None,
        texts: Sequence[str] | None = None,
    ) -> TokenTable:
        """`encode` for texts that are tokenized already; `texts` only serve the error message."""
        added, before = self.num_special, len(self._opening)
        if window <= added:
            raise UsageError(
                f"window {window}: at least {added + 1} tokens are needed, {added} special ones and one of the text"
            )
        is_cut = [len(row) + added > window for row in ids]
        if strict and any(is_cut):
            first = is_cut.index(True)
            text = texts[first] if texts is not None else f"number {first}"
            shown = text if len(text) <= _NUM_SHOWN else text[:_NUM_SHOWN] + "..."
            raise InputError(
                f"text {shown!r} has {len(ids[first]) + added} tokens (special ones counted), the window has {window}: "
                "shorten it or raise the window"
            )
        rows = [row[: window - added] for row in ids]
        lengths = np.asarray([len(row) + added for row in rows], np.int32)
        longest = int(lengths.max(initial=added))
        if length is not None and length < longest:
            raise UsageError(f"length {length}: a row has {longest} tokens; pad to at least that many")
        tokens = np.full((len(rows), longest if length is None else length), self.pad_id, np.int32)
        tokens[:, :before] = self._opening
        for index, row in enumerate(rows):
            tokens[index, before : before + len(row)] = row
            tokens[index, before + len(row)] = self.sep_id
        return TokenTable(tokens, lengths, sum(is_cut))

    def pairs(self, question: str, passages: Sequence[str], window: int) -> tuple[TokenTable, np.ndarray]:
        """Rows `[CLS] question [SEP] passage [SEP]` as the tokenizer's own template joins two texts.

        Args:
            window: most tokens of a row, special tokens counted. The end of a longer passage is cut and counted.

        Returns:
            The rows, and the type of every token (int32 [n, L]): 1 for those of the passage where the template says so.

        Raises:
            InputError: the question leaves no room for a passage.
        """
        first, *rest = self._encode_batch([question, *passages], offsets=True)
        with named_faults(self._source):
            added = self._tokenizer.num_special_tokens_to_add(True)
            room = window - len(first.ids) - added
            if room < 1:
                raise InputError(
                    f"question {question[:_NUM_SHOWN]!r} has {len(first.ids)} tokens, so a window of {window} has no "
                    "room for a passage; shorten it"
                )
            num_cut = sum(len(one.ids) > room for one in rest)
            for one in rest:
                one.truncate(room)
            joined = [self._tokenizer.post_process(first, one) for one in rest]
        lengths = np.asarray([len(one.ids) for one in joined], np.int32)
        tokens = np.full((len(joined), int(lengths.max(initial=1))), self.pad_id, np.int32)
        types = np.zeros_like(tokens)
        for row, one in enumerate(joined):
            tokens[row, : len(one.ids)], types[row, : len(one.ids)] = one.ids, one.type_ids
        return TokenTable(tokens, lengths, num_cut), types

    def offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Token ids (int32 [n]) of one text, without special tokens, and their character offsets (int64 [n, 2]).

        Offsets are half-open and point into `text` itself, not into its lower-cased form. A token of XLM-RoBERTa may
        hold the white space before it; where a character takes several tokens (bytes), they share its offsets.
        """
        (encoding,) = self._encode_batch([text], offsets=True)
        return np.asarray(encoding.ids, np.int32), np.asarray(encoding.offsets, np.int64).reshape(-1, 2)

    def count(self, text: str) -> int:
        """Number of tokens of a text, special tokens not counted; outside ASCII an unknown one counts by characters.

        WordPiece reads a word that it cannot spell as one token, whatever its length, so text in a language without
        vocabulary would seem to have almost no tokens. It counts one for every 4 characters instead.
        """
        ids = self._encode_batch([text], offsets=False)[0].ids
        if text.isascii() or self.unknown_id not in ids:
            return len(ids)
        found, offsets = self.offsets(text)
        chars = np.diff(offsets[found == self.unknown_id], axis=1)
        return len(found) + int((np.maximum(1, -(-chars // _CHARS_PER_TOKEN)) - 1).sum())

    def unknown_shares(self, texts: Sequence[str]) -> np.ndarray:
        """The share of each text that the vocabulary does not know: 0 knows all, 1 nothing; float64 [n].

        Unknown are characters of unknown tokens, and those that a word is spelled with one by one, because the letters
        of a script alone have no meaning. ASCII text is always known, and so are single characters of Han, which are
        words. White space and ASCII punctuation do not count.
        """
        shares = np.zeros(len(texts))
        asked = {number: text.split() for number, text in enumerate(texts) if not text.isascii()}
        words = list(dict.fromkeys(word for some in asked.values() for word in some))  # each is read once
        encodings = self._encode_batch(words, offsets=True)
        counts = [_count_unknown(word, found, self.unknown_id) for word, found in zip(words, encodings, strict=True)]
        known = dict(zip(words, counts, strict=True))
        for number, some in asked.items():
            num_unknown, num_counted = np.array([known[word] for word in some], int).reshape(-1, 2).sum(axis=0)
            shares[number] = num_unknown / max(1, num_counted)
        return shares

    def _encode_batch(self, texts: Sequence[object], offsets: bool) -> list:
        if isinstance(texts, str):
            raise InputError("texts: one str was given where a sequence of them is needed")
        run = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        try:
            with named_faults(self._source):
                return run(list(texts), add_special_tokens=False)
        except TypeError as error:
            raise InputError(_unreadable(texts)) from error


def train_word_level(texts: Iterable[str], vocab_size: int = 30_000) -> TextTokenizer:
    """A tokenizer with one id a lower-cased word, learned from `texts`; other words become [UNK].

    The same texts give the same ids. (The WordPiece trainer of `tokenizers` does not promise that: its ids and, at
    ties, its pieces change from call to call, so it is not offered.)

    Args:
        vocab_size: most ids, the 4 special tokens counted; rarer words fall out first, ties alphabetically.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=1, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (CLS, SEP)],
    )
    return TextTokenizer(tokenizer)


def _count_unknown(word: str, encoding: Encoding, unknown_id: int) -> tuple[int, int]:
    """(characters that the vocabulary does not know, characters that count) of a word."""
    kinds = np.array([_kind(letter) for letter in word])
    ids, offsets = np.asarray(encoding.ids), np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
    alone = np.bincount(offsets[:, 0][np.diff(offsets)[:, 0] == 1], minlength=len(kinds)) > 0
    unknown = (kinds == _SPELLED) & alone
    for start, end in offsets[ids == unknown_id]:
        unknown[start:end] = kinds[start:end] != _BLANK
    return int(unknown.sum()), int((kinds != _BLANK).sum())


@lru_cache(maxsize=1 << 14)
def _kind(letter: str) -> int:
    """The kind of a character: not part of a word, a letter that alone has a meaning, or one that only spells words."""
    if letter.isspace() or (letter.isascii() and not letter.isalnum()):
        return _BLANK
    return _KNOWN if letter.isascii() or _WHOLE.match(letter) else _SPELLED


def _unreadable(texts: Sequence[object]) -> str:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            return f"text {index}: {type(text).__name__} {text!r:.60} is not a str"
        lone = [position for position, character in enumerate(text) if "\ud800" <= character <= "\udfff"]
        if lone:
            return f"text {index}: lone surrogate at character {lone[0]}; decode the file with errors='replace'"
    return "texts: the tokenizer refused them"
