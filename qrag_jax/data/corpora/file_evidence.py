"""Evidence that a user wrote down, found in the files: by name and offsets, or by its text.

Character offsets that a user wrote down: how they may look, and what they mean in a file.
"""

import posixpath
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from qrag_jax.data.corpora.find_text import search
from qrag_jax.data.corpora.study_task import Evidence
from qrag_jax.data.dataset_rows import full_text, must_be, short
from qrag_jax.types import InputError, Span

SPAN_FIELDS = ("start", "end", "span", "spans")


def is_pair(value: object) -> bool:
    """True for [start, end]: one item of evidence, not a list of two."""
    return isinstance(value, list) and len(value) == 2 and all(_whole(number) is not None for number in value)


def item_spans(item: Mapping[str, object], field: str, where: str) -> Iterator[Span]:
    """Offsets of an item of evidence: of `start` and `end`, of `span`, and of `spans`, a list of such.

    A span is [start, end] or {"start": start, "end": end}, numbers like 3.0 included. Not compared with any file yet.
    """
    if item.get("start") is not None or item.get("end") is not None:
        yield _span([item.get("start"), item.get("end")], field, where)
    if item.get("span") is not None:
        yield _span(item["span"], field, where)
    spans = [] if item.get("spans") is None else item["spans"]
    if not isinstance(spans, list):
        raise must_be(where, f"{field}.spans", "a list of [start, end]", spans)
    for pair in spans:
        yield _span(pair, field, where)


def _span(value: object, field: str, where: str) -> Span:
    """[start, end], or an object of these two."""
    pair = value
    if isinstance(pair, Mapping) and pair.keys() == {"start", "end"}:
        pair = [pair["start"], pair["end"]]
    if isinstance(pair, list) and len(pair) == 2:
        start, end = map(_whole, pair)
        if start is not None and end is not None:
            return start, end
    raise InputError(
        f"{where}: {field}: start and end must be whole numbers, got {short(value)}; expected [start, end] or "
        '{"start": int, "end": int}'
    )


def _whole(value: object) -> int | None:
    """A whole number, also one that a table wrote as 3.0; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def meant_spans(spans: Sequence[Span], text: str | None, file: str, content: str, where: str) -> Sequence[Span]:
    """The spans; if `text` is not at them, the spans that were meant.

    Tried in turn: the spans with every "\\r\\n" counted as one character, as most programs do; the only place of the
    text. White space is compared as one blank.

    Args:
        spans: of `item_spans`.
        text: of the spans, joined if there are several; None: not known.
        file: name of the file, and `content` its text.
        where: place of the item, for messages.
    """
    problem = _problem(spans, text, file, content)
    if problem is None:
        return spans
    if text is not None:
        counted = [(_with_returns(start, content), _with_returns(end, content)) for start, end in spans]
        if _problem(counted, text, file, content) is None:
            return counted
        found = search(text, {file: content})
        if len(found) == 1:
            return [found[0][1]]
    raise InputError(f"{where}: {problem}")


def _problem(spans: Sequence[Span], text: str | None, file: str, content: str) -> str | None:
    for start, end in spans:
        if not 0 <= start < end <= len(content):
            return f"[{start}, {end}) is not inside {file}, which has {len(content)} characters"
        if not content[start:end].strip():
            return f"[{start}, {end}) of {file} is blank; count characters from 0, `end` is after it"
    there = " ".join(" ".join(content[start:end] for start, end in spans).split())
    if text is None or there == " ".join(text.split()):
        return None
    return (
        f"at {list(spans)} {file} has {short(there)}, not {short(text)}, which does not occur exactly once; offsets "
        "count characters (not bytes) of the file as it is, line ends of two characters too"
    )


def _with_returns(offset: int, content: str) -> int:
    """An offset into the text whose ends of lines are one character each, as an offset into the file's."""
    places = [match.start() - index for index, match in enumerate(re.finditer("\r\n", content))]
    return offset + bisect_left(places, offset)


# Why a question is left out.
NO_FILE = "names a file that is not in the corpus"
SEVERAL_FILES = "names a file that matches several files"
NO_PLACE = "evidence text not found"
SEVERAL_PLACES = "evidence text occurs in several places"

FILE_FIELDS = ("file", "document", "path", "filename", "file_name", "doc", "doc_id", "document_id", "source")

_SHOWN = 3  # places or files in a message
_UP = re.compile(r"^(\.\./|/)+")  # of a path that is given from elsewhere
_FIELDS = (*FILE_FIELDS, *SPAN_FIELDS, "text")
_ITEM = (
    '{"file": str, "start": int, "end": int}, {"file": str, "spans": [[start, end], ...]}, {"file": str, "text": str}, '
    "a text, or [start, end] where the file is known"
)


@dataclass(frozen=True)
class Corpus:
    """Texts by file name, relative to the folder, with forward slashes; and the path of the folder."""

    texts: Mapping[str, str]
    folder: str = ""


class NotFound(Exception):
    """A question whose evidence is in no place or in several: the reason to count, and the evidence."""

    def __init__(self, reason: str, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def locate(item: object, corpus: Corpus, default: str | None, field: str, where: str) -> Iterator[Evidence]:
    """The places of one item of evidence: an object, [start, end], or a text.

    Args:
        item: see the module `file_questions`.
        default: the file of an item that names none; None: a text is looked for in all files.
        field: of the item, and `where` its line, for messages.

    Raises:
        InputError: it does not have this form, offsets are outside their file, or its text is not there.
        NotFound: no file has that name or text, or several do.
    """
    item = {"text": item} if isinstance(item, str) else {"span": item} if isinstance(item, list) else item
    if not isinstance(item, Mapping):
        raise must_be(where, field, _ITEM, item)
    text = None if item.get("text") is None else full_text(item["text"], f"{field}.text", where)
    spans = list(item_spans(item, field, where))
    unknown = [key for key in item if key not in _FIELDS]
    if spans and unknown:  # it may say in which file they are
        raise InputError(f"{where}: {field} has an unknown field {short(unknown[0])}; known are {', '.join(_FIELDS)}")
    name = named_file(item, f"{where}: {field}")
    file = default if name is None else find_file(name, corpus, field)
    if text is None and not spans:
        raise InputError(f"{where}: {field} has neither text nor start and end; expected {_ITEM}, got {short(item)}")
    if spans and file is None:
        raise InputError(f"{where}: {field} has start and end but no file; expected {_ITEM}, got {short(item)}")
    if file is None or not spans:
        yield _find(text or "", corpus.texts if file is None else {file: corpus.texts[file]}, field)
        return
    meant = meant_spans(spans, text, file, corpus.texts[file], f"{where}: {field}")
    yield from (Evidence(file, start, end) for start, end in meant)


def named_file(item: Mapping[str, object], where: str, fields: Sequence[str] = FILE_FIELDS) -> str | None:
    """The file that an object names, in the first of these fields; None without one."""
    for field in fields:
        if item.get(field) is not None:
            return full_text(item[field], field, where)
    return None


def find_file(name: str, corpus: Corpus, field: str) -> str:
    """The file that a name means: its path below the folder, else the only one that it could mean.

    Tried in turn: the same path; with (the end of) the folder's own path before it; the end of one path only; then the
    same without the ending of the file. Accents may be written in either Unicode form.

    Raises:
        NotFound: there is no such file, or several; `field` is where it was named.
    """
    if name in corpus.texts:
        return name
    wanted = _UP.sub("", posixpath.normpath(_composed(name.strip().replace("\\", "/"))))
    folder = _composed(corpus.folder)
    for with_ending in (True, False):
        paths = {file: _composed(file if with_ending else posixpath.splitext(file)[0]) for file in corpus.texts}
        for rule in (_is_same, _is_below_folder, _is_end):
            found = [file for file, path in paths.items() if rule(path, wanted, folder)]
            if len(found) > 1:
                raise NotFound(SEVERAL_FILES, f"{field} {short(name)}: {', '.join(found[:_SHOWN])}")
            if found:
                return found[0]
    raise NotFound(NO_FILE, f"{field} {short(name)}")


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _is_same(path: str, wanted: str, folder: str) -> bool:
    return path == wanted


def _is_below_folder(path: str, wanted: str, folder: str) -> bool:
    """The folder must match too: `other/README.md` is not this README.md."""
    return wanted.endswith(f"/{path}") and f"/{folder}/{path}".endswith(f"/{wanted}")


def _is_end(path: str, wanted: str, folder: str) -> bool:
    return path.endswith(f"/{wanted}")


def _find(text: str, texts: Mapping[str, str], field: str) -> Evidence:
    """The only place of a text in the files."""
    found = [Evidence(file, *span) for file, span in search(text, texts)]
    if not found:
        raise NotFound(NO_PLACE, f"{field} {short(text)}")
    if len(found) > 1:
        places = ", ".join(f"{piece.document_id} at {piece.start}" for piece in found[:_SHOWN])
        raise NotFound(SEVERAL_PLACES, f"{field} {short(text)}: {places}")
    return found[0]
