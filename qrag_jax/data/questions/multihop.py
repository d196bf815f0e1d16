"""Readers of HotpotQA, MuSiQue and 2WikiMultihopQA in their own layouts and those of the Hugging Face hub.

A chunk is one paragraph under its title, `TITLE: PARAGRAPH`, with white space reduced to single spaces; a paragraph
without text is its title, one without title its text. Chunks are in the order of the data, so chunk i is paragraph i,
with one exception: a paragraph that repeats a *gold* paragraph word for word is left out, because either copy
answers, and two gold copies would need two picks. Repeated distractors stay.

Questions that cannot be posed are left out and counted; questions whose labels are broken in part are kept and counted.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from qrag_jax.data.dataset_rows import entries, must_be, one_line, read_rows, text_field
from qrag_jax.types import Example, InputError

# Why a question is left out.
_NO_GOLD = "no gold paragraph"
_GOLD_NOT_IN_CONTEXT = "gold title not in the context"
NOT_ANSWERABLE = "not answerable"
EMPTY_QUESTION = "empty question"
_EMPTY_PARAGRAPH = "paragraph without title and text"
_NOT_UNICODE = "half of a character (a lone surrogate)"
# What is odd about the labels of a question that is kept.
_SENTENCE_OUT_OF_RANGE = "sentence number out of range"
TITLE_SHARED = "gold title above several different paragraphs, all taken as gold"
GOLD_REPEATED = "gold paragraph repeated, first copy kept"
_DECOMPOSITION_DISAGREES = "is_supporting and question_decomposition disagree, the former taken"

_TITLED = (
    'rows {{"question", "context": [[title, [sentence, ...]], ...], "supporting_facts": [[title, sentence number], ...]'
    '[, "_id" or "id", "answer"]}} of {} (or the columns title/sentences and title/sent_id of the hub)'
)
_HOTPOT = _TITLED.format("HotpotQA's distractor setting")
_2WIKI = _TITLED.format("2WikiMultihopQA")
_MUSIQUE = (
    'rows {"question", "paragraphs": [{"title", "paragraph_text", "is_supporting"}, ...][, "id", "answer", '
    '"answerable", "question_decomposition"]} of MuSiQue'
)


@dataclass(frozen=True)
class MultihopSet:
    """Questions over titled paragraphs, with the problems of the data.

    Attributes:
        examples: at least one; each has at least one gold chunk.
        left_out: reason -> questions that cannot be posed, one reason a question.
        odd: reason -> questions that are kept although their labels are broken in part; a question may have several.
        answers: of every example all answers that count as right: its `answer`, which may be a list, then its
            `answer_aliases` (MuSiQue); empty where the data names none.
        titles: of the text of every chunk its title, empty where it has none. A title may hold ": ", so it cannot be
            read out of the text. Where two titles and paragraphs give one text, the first title.
    """

    examples: list[Example]
    left_out: Mapping[str, int]
    odd: Mapping[str, int]
    answers: list[tuple[str, ...]] = field(default_factory=list)
    titles: Mapping[str, str] = field(default_factory=dict)


def read_hotpot(source: str | Path) -> MultihopSet:
    """Reads HotpotQA: 10 paragraphs a question, gold are all paragraphs whose title a supporting fact names.

    Sentence numbers of supporting facts do not matter to paragraphs; one that does not exist is counted as odd.

    Args:
        source: what `qrag_jax.data.dataset_rows.read_rows` takes: the official .json, JSON Lines, Parquet, a saved
            dataset or a hub id. `context` and `supporting_facts` may be lists of pairs, lists of objects, columns of
            lists (the hub's layout), or any of these as JSON text.

    Raises:
        UsageError: no such source.
        InputError: a malformed row, labels missing, an id used twice, or no question that can be posed; the message
            starts with the row's place and names the field.
    """
    return _read(source, _HOTPOT, _pose_titled)


def read_2wiki(source: str | Path) -> MultihopSet:
    """Reads 2WikiMultihopQA, which has HotpotQA's layout; gold, sources and errors as in `read_hotpot`."""
    return _read(source, _2WIKI, _pose_titled)


def read_musique(source: str | Path) -> MultihopSet:
    """Reads MuSiQue: 20 paragraphs a question, gold are those with `is_supporting`.

    Questions with `"answerable": false` are left out. Where `question_decomposition` names other paragraphs than
    `is_supporting` does, the question is counted as odd. Sources and errors as in `read_hotpot`.
    """
    return _read(source, _MUSIQUE, _pose_musique)


READERS: Mapping[str, Callable[[str | Path], MultihopSet]] = MappingProxyType(
    {"hotpot": read_hotpot, "musique": read_musique, "2wiki": read_2wiki}
)


def describe(name: str, read: MultihopSet) -> str:
    """One line: questions, chunks and gold chunks per question (mean and range), and omissions with their reasons."""
    chunks = _mean_and_range([len(example.chunks) for example in read.examples])
    gold = _mean_and_range([len(example.gold) for example in read.examples])
    line = f"{name}: {len(read.examples)} questions, chunks a question {chunks}, gold a question {gold}"
    line += f"; left out: {_counts(read.left_out)}"
    return line + (f"; kept with odd labels: {_counts(read.odd)}" if read.odd else "")


def _mean_and_range(sizes: Sequence[int]) -> str:
    if not sizes:
        return "-"
    if min(sizes) == max(sizes):
        return str(sizes[0])
    return f"{sum(sizes) / len(sizes):.2f} ({min(sizes)} to {max(sizes)})"


def _counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{number} ({reason})" for reason, number in reasons.items()) or "none"


@dataclass(frozen=True)
class _Posed:
    """All paragraphs of a question as chunk texts, their titles, the gold ones, and problems of the labels."""

    paragraphs: list[str]
    titles: list[str]
    is_gold: list[bool]
    odd: list[str]


def _read(source: str | Path, what: str, pose: Callable[[Mapping, str], _Posed | str]) -> MultihopSet:
    """Examples of all rows; `pose` gives the paragraphs of a row, or the reason why it is left out."""
    examples: list[Example] = []
    answers: list[tuple[str, ...]] = []
    titles: dict[str, str] = {}
    left_out: Counter[str] = Counter()
    odd: Counter[str] = Counter()
    seen: dict[str, str] = {}
    for where, default_id, row in read_rows(source, what):
        try:
            posed = pose(row, where)
            made = posed if isinstance(posed, str) else _example(row, where, default_id, posed)
            if isinstance(posed, str) or isinstance(made, str):
                left_out[str(made)] += 1
                continue
            example, repeated = made
            right = _answers(row, where)
        except InputError as error:
            raise InputError(f"{error}; expected {what}") from error
        if example.query_id in seen:
            raise InputError(f"id {example.query_id!r} was used before at {seen[example.query_id]}", file=where)
        seen[example.query_id] = where
        examples.append(example)
        answers.append(right)
        for text, title in zip(posed.paragraphs, posed.titles, strict=True):
            titles.setdefault(text, title)
        odd.update(posed.odd + [GOLD_REPEATED] * repeated)
    if not examples:
        raise InputError(
            f"no question can be posed: {_counts(left_out)}; is it a test file without labels? Training and "
            "evaluation need gold paragraphs",
            file=source,
        )
    return MultihopSet(examples, dict(left_out), dict(odd), answers, titles)


def _example(row: Mapping, where: str, default_id: str, posed: _Posed) -> tuple[Example, bool] | str:
    """The example and whether a copy of a gold paragraph was left out of it, or the reason why there is none."""
    if "" in posed.paragraphs:
        return _EMPTY_PARAGRAPH
    question = one_line(text_field(row.get("question"), "question", where))
    if not question:
        return EMPTY_QUESTION
    if any("\ud800" <= character <= "\udfff" for text in (question, *posed.paragraphs) for character in text):
        return _NOT_UNICODE
    gold_texts = {text for text, is_gold in zip(posed.paragraphs, posed.is_gold, strict=True) if is_gold}
    chunks: list[str] = []
    for text in posed.paragraphs:
        if text not in gold_texts or text not in chunks:
            chunks.append(text)
    gold = tuple(index for index, text in enumerate(chunks) if text in gold_texts)
    answer = row.get("answer")  # for later use only: some sets have numbers and truth values here
    answer = answer if answer is None or isinstance(answer, str) else json.dumps(answer)
    query_id = _query_id(row, where, default_id)
    return Example(query_id, question, tuple(chunks), gold, answer), len(chunks) < len(posed.paragraphs)


def _answers(row: Mapping, where: str) -> tuple[str, ...]:
    """All answers that count as right, in the order of the row, each once; a value that is not a string is taken as
    its JSON."""
    aliases = row.get("answer_aliases")
    if not (aliases is None or (isinstance(aliases, list) and all(isinstance(alias, str) for alias in aliases))):
        raise must_be(where, "answer_aliases", "a list of texts", aliases)
    answer = row.get("answer")
    given = [] if answer is None else answer if isinstance(answer, list) else [answer]
    texts = [text if isinstance(text, str) else json.dumps(text) for text in (*given, *(aliases or ()))]
    return tuple(dict.fromkeys(text for text in texts if text.strip()))


def _query_id(row: Mapping, where: str, default_id: str) -> str:
    for name in ("_id", "id"):
        value = row.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise must_be(where, name, "a text or an integer", value)
        return str(value)
    return default_id


def _pose_titled(row: Mapping, where: str) -> _Posed | str:
    """HotpotQA and 2WikiMultihopQA: gold by title."""
    titles: list[str] = []
    paragraphs: list[str] = []
    num_sentences: dict[str, int] = {}
    for index, entry in enumerate(entries(row, "context", ("title", "sentences"), where)):
        place = f"context[{index}]"
        title = one_line(text_field(entry.get("title") or "", f"{place} title", where))
        sentences = entry.get("sentences", entry.get("content"))  # some releases of 2WikiMultihopQA say content
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise must_be(where, f"{place} sentences", "a list of texts", sentences)
        titles.append(title)
        paragraphs.append(_chunk(title, " ".join(sentences)))
        num_sentences[title] = max(len(sentences), num_sentences.get(title, 0))
    facts = _supporting_facts(row, where)
    gold_titles = {title for title, _ in facts}
    if not facts:
        return _NO_GOLD
    if not gold_titles <= set(titles):
        return _GOLD_NOT_IN_CONTEXT
    is_gold = [title in gold_titles for title in titles]
    odd = []
    if any(not 0 <= sentence < num_sentences[title] for title, sentence in facts):
        odd.append(_SENTENCE_OUT_OF_RANGE)
    if len({text for text, gold in zip(paragraphs, is_gold, strict=True) if gold}) > len(gold_titles):
        odd.append(TITLE_SHARED)
    return _Posed(paragraphs, titles, is_gold, odd)


def _supporting_facts(row: Mapping, where: str) -> list[tuple[str, int]]:
    """(title, 0-based sentence number) of each fact."""
    if row.get("supporting_facts") is None:
        raise _no_labels("supporting_facts", where)
    facts = []
    for index, entry in enumerate(entries(row, "supporting_facts", ("title", "sent_id"), where)):
        place = f"supporting_facts[{index}]"
        title = one_line(text_field(entry.get("title"), f"{place} title", where))
        number = entry.get("sent_id")  # says nothing about paragraphs: what is no number counts as odd
        facts.append((title, number if isinstance(number, int) and not isinstance(number, bool) else -1))
    return facts


def _pose_musique(row: Mapping, where: str) -> _Posed | str:
    """MuSiQue: gold by mark, the decomposition as a cross-check."""
    answerable = row.get("answerable")
    if not (answerable is None or isinstance(answerable, bool)):
        raise must_be(where, "answerable", "true or false", answerable)
    if answerable is False:
        return NOT_ANSWERABLE
    paragraphs: list[str] = []
    titles: list[str] = []
    is_gold: list[bool] = []
    gold_numbers = set()
    for index, entry in enumerate(entries(row, "paragraphs", (), where)):
        place = f"paragraphs[{index}]"
        title = one_line(text_field(entry.get("title") or "", f"{place} title", where))
        text = text_field(entry.get("paragraph_text"), f"{place} paragraph_text", where)
        marked = entry.get("is_supporting")
        if marked is None:
            raise _no_labels(f"{place} is_supporting", where)
        if not isinstance(marked, bool):
            raise must_be(where, f"{place} is_supporting", "true or false", marked)
        paragraphs.append(_chunk(title, text))
        titles.append(title)
        is_gold.append(marked)
        if marked:
            gold_numbers.add(_number(entry.get("idx", index), f"{place} idx", where))
    if not any(is_gold):
        return _NO_GOLD
    hops = [] if row.get("question_decomposition") is None else entries(row, "question_decomposition", (), where)
    named = {_number(hop.get("paragraph_support_idx"), "paragraph_support_idx", where) for hop in hops}
    odd = [_DECOMPOSITION_DISAGREES] if named and named != gold_numbers else []
    return _Posed(paragraphs, titles, is_gold, odd)


def _number(value: object, field: str, where: str) -> int | None:
    if isinstance(value, bool) or not (value is None or isinstance(value, int)):
        raise must_be(where, field, "an integer", value)
    return value


def _chunk(title: str, text: str) -> str:
    text = one_line(text)
    return f"{title}: {text}" if title and text else title or text


def _no_labels(field: str, where: str) -> InputError:
    return InputError(
        f"{field} is missing: a test file without labels? Training and evaluation need gold paragraphs", file=where
    )
