"""A set of questions without labels: titles of sections ask for the sections, in texts whose headings are removed.

Conventions:

- A question is the titles from the document's to the section's own with colons between them ("Rome: History: Kings").
  The document's is its id; of a Markdown file the name without folder and ending.
- Of several documents of one id the second is `ID#2`, and so on.
- Its evidence is the whole section, subsections too, up to the next section of its level or a higher one.
- Headings are not in the documents (`data/corpora/headed_documents.py`, view `removed`), so no chunk is found by its
  heading; `StudyTask.sections` says where the sections are.
- Sections of fewer than 3 sentences ask for no dense evidence, and those with more than half of their document for no
  part of it: both are left out. So is a question that was asked before, as sections of one name are.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.types import Document, Span, UsageError

# Why a section is left out.
FEW_SENTENCES = "sections of fewer than 3 sentences"
MOST_OF_DOCUMENT = "sections of more than half of their document"
ASKED_BEFORE = "sections of the same titles"
SOURCES = ("wikitext2", "scisumm")
_MIN_SENTENCES = 3


def read_headings(path: Path, name: str, split: SplitSentences = split_sentences, source: str = "") -> StudyTask:
    """Reads headed documents, and asks for every section by its titles; ids are the document's and the place there.

    Args:
        path: Markdown file or folder; or where the source is.
        split: not used, as headed documents have their own units; here because all readers take it.
        source: `scisumm` or `wikitext2`; empty for Markdown.
    """
    del split
    if source not in ("", *SOURCES):
        raise UsageError(f"{name}: source {source!r}: choose {' or '.join(SOURCES)}, or none for Markdown")
    given = read_headed(f"{source}:{path}" if source else str(path), "removed")
    found = _distinct(given)
    questions: list[StudyQuestion] = []
    left_out: Counter[str] = Counter()
    for document, known in zip(found, given, strict=True):
        asked: set[str] = set()
        for place, titles in enumerate(document.paths):
            start, end = section_span(document, place)
            title = known.id if source else Path(known.id).stem
            text = ": ".join([title, *titles])
            if reason := _reason(document, start, end, text in asked):
                left_out[reason] += 1
                continue
            asked.add(text)
            evidence = (Evidence(document.id, document.text.sentences[start][0], document.text.sentences[end - 1][1]),)
            questions.append(StudyQuestion(f"{document.id}.{place}", text, (document.id,), evidence))
    return StudyTask(
        name,
        "evidence",
        tuple(Document(document.id, document.text.text) for document in found),
        tuple(questions),
        {document.id: document.text.sentences for document in found},
        dict(left_out),
        {document.id: sections_of(document) for document in found},
    )


def sections_of(document: HeadedDocument) -> Sequence[tuple[int, int]]:
    """(first character, level) of every section."""
    return tuple((document.text.sentences[unit][0], level) for unit, level in document.points)


def section_span(document: HeadedDocument, place: int) -> Span:
    """Half-open range of the units of section number `place`: up to the next of its level or a higher one."""
    first, level = document.points[place]
    ends = (unit for unit, other in document.points[place + 1 :] if other <= level)
    return first, next(ends, len(document.text))


def _distinct(documents: Sequence[HeadedDocument]) -> list[HeadedDocument]:
    seen: Counter[str] = Counter()
    found = []
    for document in documents:
        seen[document.id] += 1
        number = seen[document.id]
        found.append(document if number == 1 else replace(document, id=f"{document.id}#{number}"))
    return found


def _reason(document: HeadedDocument, first: int, stop: int, is_known: bool) -> str:
    """Why a section is left out; empty where it is not."""
    if stop - first < _MIN_SENTENCES:
        return FEW_SENTENCES
    spans = document.text.sentences
    if 2 * (spans[stop - 1][1] - spans[first][0]) > len(document.text.text):
        return MOST_OF_DOCUMENT
    return ASKED_BEFORE if is_known else ""
