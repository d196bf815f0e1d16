"""Passages, notes and answers as text and as JSON, as `qrag find` and `qrag ask` print them."""

import shlex
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from qrag_jax.chunking.tree.level_ranges import format_levels
from qrag_jax.cli.terminal import say, shown
from qrag_jax.index.options import Found
from qrag_jax.search.answer import Answer
from qrag_jax.search.citations import Citation, render
from qrag_jax.search.levels.planners import Planned
from qrag_jax.search.rerank import Reranked
from qrag_jax.types import Cost, Hit, NoteHit, Place, Sentence

if TYPE_CHECKING:
    from qrag_jax.index.index import Index

_MAX_SHOWN = 160  # characters of a cited passage in the list
_MAX_COPIES = 3  # other places of a passage in a list
CONTEXT = "in: "  # before the context of a passage


def excerpt(text: str, most: int) -> str:
    """A text on one line, cut to at most `most` characters; `--json` gives the whole text."""
    line = " ".join(text.split())
    return shown(line if len(line) <= most else line[: most - 3] + "...")


def excerpt_with(text: str, sentence: Sentence, most: int) -> str:
    """As `excerpt`, of a passage: its beginning if that shows the sentence, else the sentence and what follows it."""
    line, wanted = " ".join(text.split()), " ".join(sentence.text.split())
    start = line.find(wanted)
    return excerpt(line if start + len(wanted) <= most - 3 or start <= 0 else f"... {line[start:]}", most)


def place_to_json(place: Place) -> dict[str, object]:
    """A place as JSON fields: `file` and `line`; `page`, `page_label` and `converted` if it has them."""
    found: dict[str, object] = {"file": place.document, "line": place.line}
    more = {"page": place.page, "page_label": place.page_label, "converted": place.converted}
    return found | {name: value for name, value in more.items() if value is not None}


def span_to_json(place: Place) -> dict[str, object]:
    """A place as JSON fields, with its characters `start` to `end` of the file."""
    return place_to_json(place) | {"start": place.start, "end": place.end}


def told_to_json(told: Hit | Citation) -> dict[str, object]:
    """The JSON fields of both hits and citations: the sentence, the copies, and the content that is left out."""
    copies = [span_to_json(place) for place in told.copies]
    return {"sentence": sentence_to_json(told.sentence), "copies": copies, "left_out": dict(told.left_out)}


def say_converted(told: Sequence[Hit | Citation]) -> None:
    """Says on standard error how to see the text that lines of converted files count in, if a place needs it."""
    places = [one.sentence.place for one in told]
    converted = next((place for place in places if place.converted is not None and place.page is None), None)
    if converted is not None:
        say(f"lines of the text: `qrag chunk {shlex.quote(converted.document)} --text` prints this text")


def format_copies(copies: Sequence[Place]) -> str:
    """Formats the other places of a passage, each once: `also in a.md:3, b.md:9 and 2 more`."""
    places = list(dict.fromkeys(shown(str(place)) for place in copies))
    more = len(places) - _MAX_COPIES
    return f"also in {', '.join(places[:_MAX_COPIES])}{f' and {more:,} more' if more > 0 else ''}"


def sentence_to_json(sentence: Sentence) -> dict[str, object]:
    """A sentence as JSON fields; `text` is characters `start` to `end` of the file."""
    return span_to_json(sentence.place) | {"text": sentence.text, "score": sentence.score}


def note_to_json(note: NoteHit) -> dict[str, object]:
    """A note as JSON fields: its text, its source, and the place in its passage where it belongs."""
    return {
        "text": note.text,
        "reader": note.reader,
        **({"question": note.question, "answer": note.answer} if note.question else {}),
        "source": span_to_json(note.source),
        "evidence": span_to_json(note.evidence) | {"text": note.quote},
    }


def planned_to_json(planned: Planned, names: Sequence[str], planner: str) -> dict[str, object]:
    """The searched levels and their cost, as JSON fields.

    Args:
        names: of all levels of the index.
        planner: that chose the levels: constant, llm, or the folder of a run.
    """
    return {
        "levels": format_levels(planned.levels, names),
        "planner": planner,
        "num_vectors": planned.num_vectors,
        "built_tokens": planned.built_tokens,
        "plan_prompt_tokens": planned.plans.reading.prompt_tokens,
        "plan_completion_tokens": planned.plans.reading.completion_tokens,
    }


def say_planned(planned: Planned, told: dict[str, object]) -> None:
    """Says the searched levels on standard error, and why a language model's plan was not used."""
    sent = f", {told['sent_tokens']:,} sent" if "sent_tokens" in told else ""
    reading = planned.plans.reading
    if reading.num_calls:
        sent += f"; the planner read {reading.prompt_tokens:,} tokens and wrote {reading.completion_tokens:,}"
    say(
        f"levels: {told['levels']} ({told['planner']}); {told['num_vectors']:,} vectors compared, "
        f"{told['built_tokens']:,} tokens built{sent}"
    )
    for reason in planned.plans.fallbacks:
        say(f"levels: no plan ({reason}: {'; '.join(reading.errors)}); searched all levels")


def answer_to_json(answer: Answer, question_id: str | None = None) -> dict[str, object]:
    """The output of `qrag ask --json`.

    `text` is characters `start` to `end` of the file, or the text of `spans` if there are several. Names and texts are
    as in the files; `write_json` makes them safe for a terminal. Fields about a language model are null without one.
    """
    context, generation, cost = answer.context, answer.generation, answer.cost
    passages = [
        _citation_to_json(citation)
        | {"num_tokens": passage.num_tokens, "score": passage.score, "rank": passage.rank}
        | scores_to_json(answer, passage.node)
        for citation, passage in zip(answer.given, context.passages, strict=True)
    ]
    return {
        "question": answer.question,
        **({} if question_id is None else {"id": question_id}),
        "answer": answer.text,
        "error": generation and generation.error,
        "finish_reason": generation and generation.finish_reason,
        "citations": [_citation_to_json(citation) for citation in answer.cited.citations],
        "unknown_citations": list(answer.cited.unknown),
        "quotes": [sentence_to_json(quote) | {"number": answer.number_of(quote)} for quote in answer.quotes],
        "context": {
            "passages": passages,
            "notes": [
                _citation_to_json(citation) | {"passage": one.passage, "reader": one.note.reader}
                for citation, one in zip(answer.given_notes, context.notes, strict=True)
            ],
            "num_tokens": context.num_tokens,
            "max_tokens": context.max_tokens,
            "num_left_out": context.num_left_out,
        },
        "num_chunks": answer.num_chunks,
        "retriever": answer.retriever,
        "notes_mode": answer.notes,
        **reranked_to_json(answer),
        "model": answer.model,
        "prompt_sha256": answer.prompt_sha256,
        "cost": {
            "seconds": dict(cost.seconds),
            "embedder_tokens": cost.embedder_tokens,
            **({} if answer.reranked is None else {"reranker_tokens": cost.reranker_tokens}),
            "prompt_tokens": cost.prompt_tokens,
            "completion_tokens": cost.completion_tokens,
            "dollars": cost.dollars,
            "from_journal": generation is not None and generation.from_journal,
        },
    }


def reranked_to_json(found: Found | Answer) -> dict[str, object]:
    """Describes the work of token vectors and of a reranker, as far as they ordered the passages."""
    told = {"late": found.late, "rerank": found.reranked}
    return {
        name: {"model": by.name, "weight": by.weight, "num_passages": len(by.scores), "num_passages_cut": by.num_cut}
        for name, by in told.items()
        if by is not None
    }


def scores_to_json(found: Found | Answer, node: int) -> dict[str, object]:
    """The scores of a passage by token vectors and a reranker; null if it was no candidate."""
    told = {"late_score": found.late, "rerank_score": found.reranked}
    return {name: one.scores.get(node) for name, one in told.items() if one is not None}


def say_reranked(reranked: Reranked | None) -> None:
    """Says how many passages a reranker did not read to their end."""
    if reranked is not None and reranked.num_cut:
        say(f"{reranked.num_cut:,} passages are longer than {reranked.name} reads; only their beginning was reranked")


def format_answer(answer: Answer, *, with_context: bool = False) -> list[str]:
    """Formats an answer as paragraphs: the answer, its citations, and with `with_context` the full passages."""
    if not answer.given:
        return ["no passages found"]
    given, generation = (*answer.given, *answer.given_notes), answer.generation
    found = partial(_listed, "passages found:")
    if answer.text is None and not with_context:
        return [found(answer.given)]
    parts = []
    if answer.quotes:
        parts = ["\n".join(_quoted(answer, quote) for quote in answer.quotes)]
    elif answer.text is not None:
        said = render(answer.text.strip(), answer.cited, lambda citation: shown(citation.place))
        parts = [printable(said) or "(the model gave an empty answer)"]
    if answer.cited.citations:
        parts.append(_listed("cited:", answer.cited.citations))
    elif answer.text is not None:
        nothing = "the model cited no existing passage" if answer.cited.unknown else "the model cited nothing"
        parts.append(nothing if with_context else _listed(f"{nothing}; its context was:", answer.given))
    if answer.cited.unknown:
        numbers = ", ".join(f"[{number}]" for number in answer.cited.unknown)
        parts.append(f"citations without a passage, made up by the model: {numbers}")
    if with_context:
        asked = generation is not None and generation.error is None
        parts.append(_listed("context:", given, whole=True) if asked else found(given, whole=True))
    return parts


def format_cost(cost: Cost, from_journal: bool) -> str:
    """Formats the cost in one line: seconds by stage, tokens embedded, read and written, dollars with prices."""
    seconds = ", ".join(f"{stage} {value:.2f} s" for stage, value in cost.seconds.items())
    tokens = f"{cost.prompt_tokens:,} prompt and {cost.completion_tokens:,} completion tokens"
    model = "answer from the journal, no new call" if from_journal else tokens
    money = "" if cost.dollars is None else f"; ${cost.dollars:.6f}"
    return f"cost: {seconds}; {cost.embedder_tokens:,} embedder tokens; {model}{money}"


def _quoted(answer: Answer, quote: Sentence) -> str:
    return f'"{shown(" ".join(quote.text.split()))}" [{answer.number_of(quote)} {shown(str(quote.place))}]'


def _citation_to_json(citation: Citation) -> dict[str, object]:
    return {
        "number": citation.number,
        **place_to_json(citation.sentence.place),
        "start": citation.spans[0][0],
        "end": citation.spans[-1][1],
        "spans": [list(span) for span in citation.spans],
        **({"context": citation.context} if citation.context else {}),
        "text": citation.text,
        **({} if citation.note is None else {"note": citation.note}),
        **told_to_json(citation),
    }


def _listed(head: str, citations: Sequence[Citation], *, whole: bool = False) -> str:
    """One line for each passage, `[1] file:line  (file:start-end)`, with its sentence or whole text below."""
    lines = [head]
    for citation in citations:
        where = shown(str(citation.sentence.place))
        lines.append(f"  [{citation.number}] {where}  ({shown(citation.place)})")
        lines += [f"      {CONTEXT}{excerpt(citation.context, _MAX_SHOWN)}"] if citation.context else []
        if citation.note is not None:
            text = f"note: {citation.note}"
            text = printable(text) if whole else excerpt(text, _MAX_SHOWN)
        else:
            text = printable(citation.text) if whole else excerpt_with(citation.text, citation.sentence, _MAX_SHOWN)
        lines += [f"      {part}" for part in text.split("\n")]
        lines += [f"      {format_copies(citation.copies)}"] if citation.copies else []
    return "\n".join(lines)


def printable(text: str) -> str:
    """A text of several lines without control characters, since a document or a model may have written it."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(4).split("\n")
    return "\n".join(shown(line) for line in lines)


def write_page(path: str, results: Sequence[Found | Answer], index: "Index", title: str) -> None:
    """Writes the page of `--html`, and says so on standard error."""
    from qrag_jax.files.whole_file import write_whole
    from qrag_jax.page.trace import trace_page

    write_whole(path, trace_page(results, index.document, title))
    say(f"page: {path}")
