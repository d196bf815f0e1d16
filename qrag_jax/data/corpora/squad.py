"""Reader of SQuAD as a search in long documents: each article is one document, a blank line between its paragraphs.

Conventions:

- The evidence of a question are the sentences, by our splitter, that hold a character of its answer. Of several
  annotated answers, the place that most annotators chose counts; in a tie, the first.
- An annotation whose text is not at its `answer_start` is ignored (the published files have a few); a question
  without another one is left out.
- Questions without answers (SQuAD 2.0) are left out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import join_pieces, strip_span
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.data.dataset_rows import any_text, entries, full_text, id_field, int_field
from qrag_jax.files.text_files import json_value, read_json_lines, read_text_file, usual_file
from qrag_jax.types import Document, InputError, Span

# Why a question is left out.
NO_ANSWER = "no answer"
ANSWER_NOT_AT_PLACE = "no answer text at its answer_start"
EMPTY_QUESTION = "empty question"

_NAMES = ("articles.jsonl", "dev-v1.1.json", "dev-v2.0.json")
_WHAT = (
    'articles {"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"answer_start", "text"}, '
    '...]}, ...]}, ...]} of SQuAD, one a line, or all as {"data": [...]}'
)


@dataclass(frozen=True)
class _Row:
    """A question of the file, its paragraph, and the offset of that paragraph in the document."""

    where: str
    fields: Mapping[str, object]
    context: str
    offset: int


def read_squad(path: Path, name: str, split: SplitSentences = split_sentences) -> StudyTask:
    """Reads articles, in the order of the file; the title is a document's id, `answers` are the distinct texts.

    Args:
        path: JSON Lines of articles, the published JSON, either one also as .gz, or a folder with one of them:
            articles.jsonl, dev-v1.1.json, dev-v2.0.json.
        split: gives the sentences of a joined article.
    """
    documents: dict[str, Document] = {}
    sentences: dict[str, Sequence[Span]] = {}
    questions: dict[str, StudyQuestion] = {}
    left_out: Counter[str] = Counter()
    for where, article in _articles(usual_file(path, _NAMES, _WHAT)):
        document, rows = _join_article(article, where)
        if document.id in documents:
            raise InputError(f"{where}: title {document.id!r} was used before: titles must be distinct, they are ids")
        documents[document.id] = document
        sentences[document.id] = split(document.text)
        for row in rows:
            posed = _question(row, document.id, sentences[document.id])
            if isinstance(posed, str):
                left_out[posed] += 1
                continue
            if posed.id in questions:
                raise InputError(f"{row.where}: id {posed.id!r} was used before: ids must be distinct")
            questions[posed.id] = posed
    return StudyTask(name, "evidence", tuple(documents.values()), tuple(questions.values()), sentences, dict(left_out))


def _articles(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """(place, article); a file whose name says JSON, not JSON Lines, holds all of them in one object."""
    if not path.name.endswith((".json", ".json.gz")):
        yield from read_json_lines(path, _WHAT)
        return
    whole = json_value(read_text_file(path, _WHAT), path, _WHAT)
    if not isinstance(whole, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(whole).__name__}; expected {_WHAT}")
    for index, article in enumerate(entries(whole, "data", (), str(path))):
        yield f"{path}: data[{index}]", article


def _join_article(article: Mapping[str, object], where: str) -> tuple[Document, list[_Row]]:
    """The document of an article, and its questions as in the file."""
    title = full_text(article.get("title"), "title", where)
    paragraphs = {
        f"{where}: paragraphs[{i}]": entry for i, entry in enumerate(entries(article, "paragraphs", (), where))
    }
    if not paragraphs:
        raise InputError(f"{where}: paragraphs is empty: an article needs at least one")
    contexts = [full_text(paragraph.get("context"), "context", place) for place, paragraph in paragraphs.items()]
    text, spans = join_pieces(contexts, "\n\n")
    rows: list[_Row] = []
    for (place, paragraph), context, (start, _) in zip(paragraphs.items(), contexts, spans, strict=True):
        offset = start - (len(context) - len(context.lstrip()))
        for index, fields in enumerate(entries(paragraph, "qas", (), place)):
            rows.append(_Row(f"{place} qas[{index}]", fields, context, offset))
    return Document(title, text, {"title": title}), rows


def _question(row: _Row, title: str, sentences: Sequence[Span]) -> StudyQuestion | str:
    """The question, or the reason why it is left out."""
    name = id_field(row.fields.get("id"), "id", row.where)
    question = any_text(row.fields.get("question"), "question", row.where)
    answers = entries(row.fields, "answers", (), row.where)
    if not question.strip():
        return EMPTY_QUESTION
    if not answers:
        return NO_ANSWER
    spans = [_answer_span(answer, f"{row.where} answers[{i}]", row.context) for i, answer in enumerate(answers)]
    found = [span for span in spans if span is not None]
    if not found:
        return ANSWER_NOT_AT_PLACE
    texts = tuple(dict.fromkeys(row.context[start:end] for start, end in found))
    [((start, end), _)] = Counter(found).most_common(1)  # the first counted of those counted equally often
    holding = [span for span in sentences if span[0] < end + row.offset and start + row.offset < span[1]]
    evidence = tuple(Evidence(title, first, last) for first, last in holding)
    return StudyQuestion(name, question, (title,), evidence, texts)


def _answer_span(answer: Mapping[str, object], where: str, context: str) -> Span | None:
    """Characters of the context without blank ends; None where the text is not there."""
    text = any_text(answer.get("text"), "text", where)
    start = int_field(answer.get("answer_start"), "answer_start", where)
    if start < 0 or not context.startswith(text, start):
        return None
    return strip_span(context, start, start + len(text))
