"""What `qrag ask` prints: the answer with its citations as places in files, passages, cost; for people and as JSON."""

from collections.abc import Sequence

from qrag_jax.cli.searching.places import excerpt
from qrag_jax.cli.searching.sources import Source
from qrag_jax.cli.terminal import shown
from qrag_jax.search.answer import Answer, FoundPassages
from qrag_jax.search.context.citations import Citation, render
from qrag_jax.types import Cost

_MOST_SHOWN = 160  # characters of a cited passage in the list


def to_json(
    found: Answer | FoundPassages, cost: Cost, source: Source, question_id: str | None = None
) -> dict[str, object]:
    """What `--json` prints. `text` is characters `start` to `end` of the file; of several spans, those of `spans`.

    Names and texts are those of the files; `write_json` makes them fit for a terminal. Where no language model was
    asked, what it would have said is null.
    """
    context, answer = found.context, found if isinstance(found, Answer) else None
    generation = None if answer is None else answer.generation
    passages = [
        _citation_to_json(citation) | {"num_tokens": passage.num_tokens, "score": passage.score, "rank": passage.rank}
        for citation, passage in zip(found.given, context.passages, strict=True)
    ]
    return {
        "question": found.question,
        **({} if question_id is None else {"id": question_id}),
        "answer": generation.text if generation is not None and generation.error is None else None,
        "error": generation and generation.error,
        "finish_reason": generation and generation.finish_reason,
        "citations": [] if answer is None else [_citation_to_json(citation) for citation in answer.cited.citations],
        "unknown_citations": [] if answer is None else list(answer.cited.unknown),
        "context": {
            "passages": passages,
            "notes": [
                _citation_to_json(citation) | {"passage": one.passage, "reader": one.note.reader}
                for citation, one in zip(found.given_notes, context.notes, strict=True)
            ],
            "num_tokens": context.num_tokens,
            "max_tokens": context.max_tokens,
            "num_left_out": context.num_left_out,
        },
        "num_chunks": found.num_chunks,
        "retriever": source.retriever,
        "notes_mode": source.notes_mode,
        "model": answer and answer.model,
        "prompt_sha256": answer and answer.prompt_sha256,
        "cost": {
            "seconds": dict(cost.seconds),
            "embedder_tokens": cost.embedder_tokens,
            "prompt_tokens": cost.prompt_tokens,
            "completion_tokens": cost.completion_tokens,
            "dollars": cost.dollars,
            "from_journal": generation is not None and generation.from_journal,
        },
    }


def format_answer(answer: Answer | FoundPassages, *, with_context: bool = False) -> list[str]:
    """Paragraphs: the answer, what it cites, and with `with_context` all that the model was given, in full."""
    if not answer.given:
        return ["no passage was found"]
    if not isinstance(answer, Answer):
        notes = answer.given_notes if with_context else ()
        return [_listed("passages that were found:", (*answer.given, *notes), whole=with_context)]
    failed = answer.generation.error is not None
    parts = []
    if not failed:
        said = render(answer.generation.text.strip(), answer.cited, lambda citation: shown(citation.place))
        parts.append(_printable(said) or "(the model answered with nothing)")
    if answer.cited.citations:
        parts.append(_listed("cited:", answer.cited.citations))
    elif failed and not with_context:
        parts.append(_listed("passages that were found:", answer.given))
    elif not failed:
        nothing = "the model cited no passage that exists" if answer.cited.unknown else "the model cited nothing"
        parts.append(nothing if with_context else _listed(f"{nothing}; the passages it was given:", answer.given))
    if answer.cited.unknown:
        numbers = ", ".join(f"[{number}]" for number in answer.cited.unknown)
        parts.append(f"numbers that the model made up, no such passage: {numbers}")
    if with_context:
        given = (*answer.given, *answer.given_notes)
        parts.append(_listed("passages that were found:" if failed else "passages given:", given, whole=True))
    return parts


def format_cost(cost: Cost, from_journal: bool) -> str:
    """One line: seconds by stage, tokens embedded, read and written, dollars where there are prices."""
    seconds = ", ".join(f"{stage} {value:.2f} s" for stage, value in cost.seconds.items())
    tokens = f"{cost.prompt_tokens:,} prompt and {cost.completion_tokens:,} completion tokens"
    model = "answer from the journal, nothing paid" if from_journal else tokens
    money = "" if cost.dollars is None else f"; ${cost.dollars:.6f}"
    return f"cost: {seconds}; {cost.embedder_tokens:,} embedder tokens; {model}{money}"


def _citation_to_json(citation: Citation) -> dict[str, object]:
    return {
        "number": citation.number,
        "file": citation.document_id,
        "start": citation.spans[0][0],
        "end": citation.spans[-1][1],
        "spans": [list(span) for span in citation.spans],
        "line": citation.line,
        **({} if citation.page is None else {"page": citation.page}),
        "text": citation.text,
        **({} if citation.note is None else {"note": citation.note}),
    }


def _listed(head: str, citations: Sequence[Citation], *, whole: bool = False) -> str:
    """A line a passage, `[1] file:line  (file:start-end)`, and below it how it begins, or all of it."""
    lines = [head]
    for citation in citations:
        where = f":{citation.line}" if citation.page is None else f"#page={citation.page}"
        lines.append(f"  [{citation.number}] {shown(citation.document_id + where)}  ({shown(citation.place)})")
        said = citation.text if citation.note is None else f"note: {citation.note}"
        text = _printable(said) if whole else excerpt(said, _MOST_SHOWN)
        lines += [f"      {part}" for part in text.split("\n")]
    return "\n".join(lines)


def _printable(text: str) -> str:
    """Several lines, without what a terminal would obey: a document or a model may have written it."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(4).split("\n")
    return "\n".join(shown(line) for line in lines)
