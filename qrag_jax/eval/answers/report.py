"""Answer rows as a table for terminals: the facts in the prompt next to the scores of the answers."""

import re
from collections.abc import Sequence

from qrag_jax.eval.answers.records import MEASURES, SCORES, AnswerRow, Score
from qrag_jax.eval.tables import align, share

_HASH = re.compile(r"([0-9a-f]{12})[0-9a-f]{20,}")
_NAMES = {
    "em": "answer EM",
    "f1": "answer F1",
    "contains": "contains it",
    "rouge_l": "ROUGE-L",
    "babilong": "BabiLong",
    "claim_precision": "claim P",
    "claim_recall": "claim R",
    "claim_f1": "claim F1",
    "judge": "judged",
}
_METHODS = {
    "single_step": "single step",
    "bm25": "BM25",
    "reranked": "single step, reranked",
    "gold_chunks": "gold chunks (bound)",
    "no_chunks": "no chunks",
}


def format_answers(rows: Sequence[AnswerRow]) -> str:
    """The rows as aligned text, a block a task: facts, then answers, each score with its 95% interval.

    Failed calls and cut answers have their own columns; a missing score is a dash.
    """
    blocks = []
    for task in dict.fromkeys(row.task for row in rows):
        own = [row for row in rows if row.task == task]
        blocks.append("\n".join([_heading(own), *align(_table(own)), *_notes(own)]))
    return "\n\n".join(blocks) + "\n"


def _heading(rows: Sequence[AnswerRow]) -> str:
    first = rows[0]
    cut = f"at most {first.max_tokens} tokens" + (f", temperature {first.temperature:g}" if first.temperature else "")
    return f"{first.task}: answers of {_short(first.model)}, {cut}, prompt {_short(first.prompt_sha256)}"


def _table(rows: Sequence[AnswerRow]) -> list[list[str]]:
    names = [name for name in SCORES if any(name in row.scores for row in rows)]
    counts = ["asked", "failed", "cut", "tokens read", "written"]
    table = [["method", "protocol", "chunks", "fact EM", "fact F1", *(_NAMES[name] for name in names), *counts]]
    for row in rows:
        own = row.setting
        label = _METHODS.get(own.method, own.method) + (f", beam {own.beam_width}" if own.beam_width > 1 else "")
        table.append(
            [
                label,
                own.protocol if own.protocol != "none" else "-",
                f"{own.num_chunks:,}",
                share(row.fact_em),
                share(row.fact_f1),
                *(_score(row.scores.get(name)) for name in names),
                *(f"{number:,}" for number in (row.n, row.num_failed, row.num_cut)),
                *(f"{number:,}" for number in (row.prompt_tokens, row.completion_tokens)),
            ]
        )
    return table


def _notes(rows: Sequence[AnswerRow]) -> list[str]:
    first = rows[0]
    convention = _CONVENTIONS[first.convention]
    notes = [f"After each answer score: 95% interval over the questions. F1 by the convention of {convention}."]
    if any(row.num_failed for row in rows):
        notes.append("Means leave out failed calls; paired tests use the questions that both methods answered.")
    for measure, names in MEASURES.items():
        count = sum(row.scores[names[0]].num_failed for row in rows if names[0] in row.scores)
        if count:
            notes.append(f"{measure}: {count:,} answers could not be scored; its means leave them out.")
    if left_out := max(row.num_without_reference for row in rows):
        notes.append(f"Not asked, without a reference answer: {left_out:,} questions.")
    for measure, agreed in first.agreement.items():
        by = f"{measure}: judged by {', '.join(map(_short, first.judges))}"
        if agreed.raw is not None:
            alpha = "not defined" if agreed.alpha is None else f"{agreed.alpha:.2f}"
            by += f"; of {agreed.num_items:,} things, raw agreement {agreed.raw:.2f}, Krippendorff's alpha {alpha}"
        notes.append(f"{by}.")
    return notes


_CONVENTIONS = {"squad": "SQuAD", "hotpot": "HotpotQA (yes, no and other answers share nothing)"}


def _short(name: str) -> str:
    """A name with its hashes cut to 12 digits."""
    return _HASH.sub(r"\1", name)


def _score(score: Score | None) -> str:
    if score is None or score.mean is None or score.low is None or score.high is None:
        return "-"
    return f"{share(score.mean)} {share(score.low)}-{share(score.high)}"
