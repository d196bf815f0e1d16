"""Reader of ConditionalQA: questions about British government pages; the answers are in paragraphs and list items.

The pages come in two forms: whole (`documents.json`, the published file), or only the elements that are evidence of
some question (`evidence_pool.jsonl`). With the second, a page is the evidence of all questions about it and nothing
else: numbers are not to be compared with those on whole pages.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import join_pieces
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.data.dataset_rows import full_text, id_field, list_field, must_be, one_line, optional_text, read_rows
from qrag_jax.files.text_files import usual_file
from qrag_jax.types import Document, InputError, Span

# Why a question is left out.
NOT_ANSWERABLE = "not answerable"
NO_EVIDENCE = "no evidence"
NOT_IN_PAGE = "evidence not in its page"
NO_PAGE = "page not in the corpus"

_PAGES = 'rows {"url", "contents" or "evidence_elements": [HTML element, ...][, "title"]} of ConditionalQA'
_QUESTIONS = 'rows {"url", "question", "scenario", "evidences", "answers", "not_answerable"} of ConditionalQA'
_PAGE_FILES = ("documents.json", "evidence_pool.jsonl")  # whole pages first
_FIRST_TAG = re.compile(r"\s*<(\w+)")
_TAG = re.compile(r"</?[A-Za-z][^>]*>")
_TIGHT = ("li", "tr")  # items of a list and rows of a table stand on neighbouring lines


@dataclass(frozen=True)
class _Page:
    document: Document
    units: tuple[Span, ...]
    places: Mapping[str, Span]  # HTML element -> where it is, its first place if the page has it twice


def read_conditionalqa(
    path: Path, name: str, split: SplitSentences = split_sentences, questions: str = "dev"
) -> StudyTask:
    """Reads a folder of ConditionalQA as a task of kind "evidence".

    A document is a page: its elements without tags, headings as Markdown (`## TITLE`), list items as `- ITEM`. Evidence
    is counted in elements. A question is its scenario and its question text. Questions without an answer or evidence,
    or with a missing page, are left out and counted.

    Args:
        path: folder with `documents.json` or, without it, `evidence_pool.jsonl`, and the questions, each also as .gz;
            or the file of pages; that of questions is in the same folder.
        split: not used, because the data has units.
        questions: file of the questions, without .json: "dev" or "train".
    """
    file = usual_file(path, _PAGE_FILES, _PAGES)
    pages = {page.document.id: page for page in _pages(file)}
    left_out: Counter[str] = Counter()
    asked = list(_questions(usual_file(file.parent, (f"{questions}.json",), _QUESTIONS), pages, left_out))
    if not asked:
        raise InputError(f"{path}: no question of {questions}.json can be asked: {dict(left_out)}")
    documents = tuple(page.document for page in pages.values())
    units = {key: page.units for key, page in pages.items()}
    return StudyTask(name, "evidence", documents, tuple(asked), units, dict(left_out))


def _pages(path: Path) -> Iterator[_Page]:
    seen: set[str] = set()
    for where, _, row in read_rows(path, _PAGES):
        url = full_text(row.get("url"), "url", where)
        if url in seen:
            raise InputError(f"{where}: url {url} was used before: give each page once")
        seen.add(url)
        field = "contents" if "contents" in row else "evidence_elements"
        elements = [optional_text(item, field, where) for item in list_field(row.get(field), field, where)]
        page = _page(url, optional_text(row.get("title"), "title", where), elements)
        if page is not None:
            yield page


def _page(url: str, title: str, elements: Sequence[str]) -> _Page | None:
    """None for a page without text."""
    full = [element for element in elements if _words(element)]
    pieces = [_markdown(element) for element in full]
    if not pieces:
        return None
    tags = [_tag(element) for element in full]
    gaps = ["\n" if one == other and one in _TIGHT else "\n\n" for one, other in zip(tags, tags[1:], strict=False)]
    head = [f"# {one_line(title)}"] if title.strip() else []
    text, spans = join_pieces(head + pieces, ["\n\n"] * len(head) + gaps)
    units = spans[len(head) :]
    places: dict[str, Span] = {}
    for element, span in zip(full, units, strict=True):
        places.setdefault(element.strip(), span)
    return _Page(Document(url, text, {"title": one_line(title)} if head else {}), units, places)


def _tag(element: str) -> str:
    match = _FIRST_TAG.match(element)
    return match[1].lower() if match else ""


def _words(element: str) -> str:
    return one_line(html.unescape(_TAG.sub("", re.sub(r"<br\s*/?>", " ", element))))


def _markdown(element: str) -> str:
    tag = _tag(element)
    if re.fullmatch("h[1-6]", tag):
        return f"{'#' * int(tag[1])} {_words(element)}"
    return f"- {_words(element)}" if tag == "li" else _words(element)


def _questions(path: Path, pages: Mapping[str, _Page], left_out: Counter[str]) -> Iterator[StudyQuestion]:
    for where, default, row in read_rows(path, _QUESTIONS):
        if "evidences" not in row:
            raise InputError(f"{where}: no evidences: these questions are published without their answers")
        page = pages.get(full_text(row.get("url"), "url", where))
        wanted = [
            full_text(item, "evidences", where).strip() for item in list_field(row["evidences"], "evidences", where)
        ]
        if row.get("not_answerable"):
            left_out[NOT_ANSWERABLE] += 1
        elif not wanted:
            left_out[NO_EVIDENCE] += 1
        elif page is None:
            left_out[NO_PAGE] += 1
        elif any(element not in page.places for element in wanted):
            left_out[NOT_IN_PAGE] += 1
        else:
            scenario = optional_text(row.get("scenario"), "scenario", where)
            text = f"{scenario} {full_text(row.get('question'), 'question', where)}"
            url = page.document.id
            evidence = tuple(Evidence(url, *page.places[element]) for element in dict.fromkeys(wanted))
            name = id_field(row.get("id", default), "id", where)
            yield StudyQuestion(name, one_line(text), (url,), evidence, _answers(row, where))


def _answers(row: Mapping[str, object], where: str) -> tuple[str, ...]:
    """Answers without the conditions under which they hold; blank ones are no answers."""
    answers = []
    for item in list_field(row.get("answers"), "answers", where):
        if not isinstance(item, list) or not item or not isinstance(item[0], str):
            raise must_be(where, "answers", "[text, conditions] each", item)
        if item[0].strip():
            answers.append(item[0])
    return tuple(answers)
