"""OpenTelemetry spans of searches and answers, by the names of OpenInference and of `gen_ai`. Needs the extra `otel`.

with send("http://127.0.0.1:4318") as spans:    # integrations/otel_sending.py; or Spans(tracer) of your own program
    library = Library.open(["notes.index"], observe=spans)    # or traced(open_index("notes.index"), spans)
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import StatusCode, Tracer, set_span_in_context

from qrag_jax.chunking.text.spans import readable
from qrag_jax.index.options import Found
from qrag_jax.names import RETRIEVERS
from qrag_jax.search.answer import Answer
from qrag_jax.search.context.pack import Passage
from qrag_jax.service.observing import Observed, Result
from qrag_jax.types import Hit

_KIND, _OPERATION = "openinference.span.kind", "gen_ai.operation.name"


@dataclass(frozen=True)
class Spans:
    """An `Observe`: a CHAIN for a question, in it a RETRIEVER for each step (a pick of a run, or a search), and an LLM.

    The picks of a run begin and end with the search, because a run picks in one call.

    Attributes:
        tracer: makes the spans.
        trace_content: record questions, passages, answers and messages of errors; else only ids, scores and counts.
    """

    tracer: Tracer
    trace_content: bool = False

    def __call__(self, observed: Observed) -> None:
        """Makes the spans of one question."""
        told = {_KIND: "CHAIN"} | self._texts(observed.question, "input.value")
        chain = self.tracer.start_span("qrag", start_time=observed.start, attributes=told)
        for index, result in observed.results.items():
            self._retrieved(observed, index, result, set_span_in_context(chain))
        if observed.error is not None:
            chain.set_attribute("error.type", type(observed.error).__name__)
            chain.set_status(StatusCode.ERROR, readable(str(observed.error)) if self.trace_content else None)
        chain.end(observed.end)

    def _retrieved(self, observed: Observed, index: str, result: Result, within: Context) -> None:
        end, facts = observed.end, getattr(result, "__dict__", {})
        told = {_KIND: "RETRIEVER", _OPERATION: "retrieval", "gen_ai.data_source.id": readable(index)}
        told |= {f"qrag.{name}": facts[name] for name in ("num_chunks", "stop_reason") if facts.get(name) is not None}
        told |= self._texts(observed.question, "input.value", "gen_ai.retrieval.query.text")
        if isinstance(result, Answer):
            end -= round(1e9 * result.cost.seconds.get("generate", 0))
            self._answered(observed, result, end, within)
        hits, is_run = _hits(result)
        for step in [[hit] for hit in hits] if is_run else [hits]:
            picked = {"qrag.step": step[0].rank, "qrag.q_value": step[0].score} if is_run else {}
            span = self.tracer.start_span("retrieval", within, attributes=told | picked, start_time=observed.start)
            span.set_attributes(self._documents(step))
            span.end(end)

    def _documents(self, hits: Sequence[Hit | Passage]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for i, hit in enumerate(hits):
            file = readable(hit.place.document if isinstance(hit, Hit) else hit.document_id)
            of, id = f"retrieval.documents.{i}.document", f"{file}#{hit.spans[0][0]}-{hit.spans[-1][1]}"
            told |= {f"{of}.id": id, f"{of}.score": hit.score} | self._texts(hit.text, f"{of}.content")
            told[f"{of}.metadata"] = json.dumps({"file": file, "spans": hit.spans})
        ids = [{"id": told[f"retrieval.documents.{i}.document.id"], "score": hit.score} for i, hit in enumerate(hits)]
        return told | {"gen_ai.retrieval.documents": json.dumps(ids)}

    def _answered(self, observed: Observed, answer: Answer, start: int, within: Context) -> None:
        if (made := answer.generation) is None:
            return
        model, read, written = readable(answer.model or ""), made.prompt_tokens, made.completion_tokens
        told = {_KIND: "LLM", _OPERATION: "chat", "llm.model_name": model, "gen_ai.request.model": model}
        told |= dict.fromkeys(("llm.token_count.prompt", "gen_ai.usage.input_tokens"), read)
        told |= dict.fromkeys(("llm.token_count.completion", "gen_ai.usage.output_tokens"), written)
        told |= {"llm.token_count.total": read + written, "gen_ai.response.finish_reasons": [made.finish_reason]}
        told |= self._texts(observed.question, "input.value") | self._texts(made.text, "output.value")
        span = self.tracer.start_span("chat", within, attributes=told, start_time=start)
        if made.error is not None:
            span.set_status(StatusCode.ERROR, readable(made.error) if self.trace_content else None)
        span.end(observed.end)

    def _texts(self, text: str, *names: str) -> dict[str, str]:
        return dict.fromkeys(names, readable(text)) if self.trace_content else {}


def _hits(result: Result) -> tuple[Sequence[Hit | Passage], bool]:
    """The hits in their order, and whether a run picked each in a step of its own."""
    if isinstance(result, Answer):
        return sorted(result.context.passages, key=attrgetter("rank")), result.retriever not in RETRIEVERS
    hits = result.hits if isinstance(result, Found) else result
    return hits, any(hit.position is not None for hit in hits)
