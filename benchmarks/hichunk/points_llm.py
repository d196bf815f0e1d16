"""What a language model finds of sections without headings: HiChunk and LumberChunker beside what costs nothing.

    python -m benchmarks.hichunk.points_llm DATA MODEL.gguf [--documents 10] [--journal FILE] [--name NAME]

DATA holds wikitext2/ and scisumm/, as of `points.py`, whose scores and views these are. --documents of each
are drawn with a fixed seed, of those with at most --most_sentences sentences. Nothing is trained or chosen here, so all
drawn documents are scored: HiChunk and LumberChunker as `qrag boundaries` asks them, every paragraph start, every
sentence, breakpoint at its default. Papers have no paragraphs, so LumberChunker reads them sentence by sentence: a
model that names the next one each time is asked a call a sentence, 80 a paper. --lumber says where it is asked.

Rows kept and dropped, by reason, are of the model's answers, and so are tokens a document; seconds are told where all
calls were made now. With a journal no call is made twice.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import about, about_lines, arguments, interval, minilm, open_model, write
from qrag_jax.annotate.hichunk import HiChunkConfig, make_hichunk
from qrag_jax.annotate.lumber import make_lumber
from qrag_jax.annotate.windows import PointsReading
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig, make_breakpoint
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.boundaries import Point, PredictPoints, paragraph_points, predict_checked, strategy_points
from qrag_jax.cli.progress import Progress
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.eval.tables import align, share
from qrag_jax.llm.calls import AroundGenerator
from qrag_jax.measures.boundary_scores import Judged, score_points
from qrag_jax.names import VIEWS, View
from qrag_jax.types import Finished, Generation, Message, Sampling, TextGenerator

RESULTS = Path(__file__).parent / "results"

SOURCES = {"articles": "wikitext2:{}/wikitext2", "papers": "scisumm:{}/scisumm/cited_papers.jsonl.gz"}
PERCENTILE = 85  # the default of `qrag boundaries`
SEED = 0
LUMBER = "LumberChunker"
Count = Callable[[str], int]


def drawn(source: str, view: View, number: int, most_sentences: int) -> list[HeadedDocument]:
    """The same documents in every view."""
    short = {one.id for one in read_headed(source, "removed") if len(one.text) <= most_sentences}
    found = [one for one in read_headed(source, view) if one.id in short]
    return [found[i] for i in np.sort(np.random.default_rng(SEED).permutation(len(found))[:number])]


def sentence_points(texts: Sequence[SentenceText]) -> list[list[Point]]:
    """Every sentence, level 1."""
    return [[(number, 1) for number in range(1, len(text))] for text in texts]


@dataclass(frozen=True)
class Answers(AroundGenerator):
    """A model whose answers are kept, those of the journal too."""

    generator: TextGenerator
    given: list[Generation] = field(default_factory=list)

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> Sequence[Generation]:
        found = self.generator.generate(prompts, sampling=sampling, finished=finished)
        self.given.extend(found)
        return found


def asked(
    make: Callable[..., PredictPoints],
    generator: TextGenerator,
    count: Callable[[str], int],
    texts: Sequence[SentenceText],
) -> tuple[list[list[Point]], dict[str, Any]]:
    """The points of a model, and what they took a document."""
    readings: list[PointsReading] = []
    answers = Answers(generator)
    start = time.perf_counter()
    with Progress() as progress:
        found = make(answers, count, progress=progress.answered, finished=readings.append)(texts)
    (reading,) = readings
    seconds = (time.perf_counter() - start) / len(texts)
    took = {
        "windows": reading.num_windows,
        "rows_kept": reading.num_rows,
        "dropped": dict(reading.dropped),
        "calls": asdict(reading.calls),
        "seconds_a_document": None if any(one.from_journal for one in answers.given) else seconds,
        "tokens_read_a_document": sum(one.prompt_tokens for one in answers.given) / len(texts),
        "tokens_written_a_document": sum(one.completion_tokens for one in answers.given) / len(texts),
    }
    return found, took


def scored(method: str, documents: Sequence[HeadedDocument], found: Sequence[Sequence[Point]]) -> dict[str, Any]:
    score = score_points([Judged(len(one.text), one.points, its) for one, its in zip(documents, found, strict=True)])
    return {
        "method": method,
        "f1_l1": score.f1[1],
        "f1_l2": score.f1[2],
        "f1_any": asdict(score.f1_any),
        "pk": score.pk,
        "window_diff": score.window_diff,
        "found": sum(len(points) for points in found),
        "right": score.n_points,
    }


def methods_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The Markdown of rows of `scored`; those of a model tell in `took` what it cost."""
    table: list[tuple[str, ...]] = [
        ("method", "F1 level 1", "level 2", "any", "Pk", "found", "kept", "dropped", "s", "read", "written")
    ]
    for row in rows:
        cost = ("", "", "", "", "")
        if took := row.get("took"):
            dropped = ", ".join(f"{number} {reason}" for reason, number in took["dropped"].items()) or "0"
            per = [f"{took[name]:.0f}" for name in ("tokens_read_a_document", "tokens_written_a_document")]
            seconds = took["seconds_a_document"]
            cost = (str(took["rows_kept"]), dropped, "" if seconds is None else f"{seconds:.1f}", *per)
        scores = share(row["f1_l1"]), share(row["f1_l2"]), interval(row["f1_any"]), share(row["pk"])
        table.append((row["method"], *scores, str(row["found"]), *cost))
    return align(table, (False, *[True] * 10), markdown=True)


def format_report(result: dict[str, Any]) -> str:
    lines = ["# Sections that a language model finds", "", f"`{result['command']}`", "", *about_lines(result["about"])]
    for key, rows in result["tables"].items():
        number = f"{result['documents'][key]} documents drawn with seed {SEED}"
        about_it = f"{number}, {rows[0]['right']} points; s, read and written: a document"
        lines += [f"## {key}", "", about_it, "", *methods_table(rows), ""]
    return "\n".join(lines)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("model")
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=["removed"])
    parser.add_argument("--documents", type=int, default=10, metavar="N", help="of each source")
    parser.add_argument("--most_sentences", type=int, default=120, metavar="N")
    parser.add_argument("--window_lines", type=int, default=40, metavar="N")
    parser.add_argument("--lumber", nargs="*", choices=list(SOURCES), default=list(SOURCES), help="where it is asked")
    parser.add_argument("--journal", type=Path, metavar="FILE")
    parser.add_argument("--name", default="points_llm", help="of the files in results/")
    args = parser.parse_args()
    generator, embed = open_model(args.model, args.journal, claim_size=64), minilm()
    config = HiChunkConfig(window_tokens=4_000, window_lines=args.window_lines, max_answer_tokens=500)
    makers = {"HiChunk": partial(_hichunk, config), LUMBER: make_lumber}
    cheap: dict[str, PredictPoints] = {
        "every paragraph": paragraph_points,
        "every sentence": sentence_points,
        f"breakpoint, percentile {PERCENTILE}": strategy_points(
            make_breakpoint(BreakpointConfig("percentile", PERCENTILE), embed)
        ),
    }
    tables: dict[str, list[dict[str, Any]]] = {}
    numbers: dict[str, int] = {}
    for view in args.views:
        for domain, source in SOURCES.items():
            documents = drawn(source.format(args.data), view, args.documents, args.most_sentences)
            texts, names = [one.text for one in documents], [one.id for one in documents]
            rows = [scored(name, documents, predict_checked(predict, texts, names)) for name, predict in cheap.items()]
            for name, make in makers.items():
                if name == LUMBER and domain not in args.lumber:
                    continue
                found, took = asked(make, generator, embed.count_tokens, texts)
                rows.append(scored(name, documents, found) | {"took": took})
            key = f"{domain}, {view}"
            tables[key], numbers[key] = rows, len(documents)
            command = (
                f"python -m benchmarks.hichunk.points_llm DATA {Path(args.model).name} --documents {args.documents}"
            )
            command += f" --most_sentences {args.most_sentences} --window_lines {args.window_lines}"
            command += f" --views {' '.join(args.views)}"
            command += "" if args.lumber == list(SOURCES) else f" --lumber {' '.join(args.lumber)}"
            result = {"command": command, "about": about(), "tables": tables, "documents": numbers}
            write(RESULTS, args.name, result, format_report(result))


def _hichunk(config: HiChunkConfig, generator: TextGenerator, count: Count, **told: Any) -> PredictPoints:
    return make_hichunk(generator, count, config, **told)


if __name__ == "__main__":
    main()
