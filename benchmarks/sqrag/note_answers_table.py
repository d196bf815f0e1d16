"""The page of `benchmarks/sqrag/note_answers.py table`: answers with notes by set, and what reading the notes took."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import interval
from benchmarks.sqrag.notes_table import KS, K, machines
from qrag_jax.eval.tables import align, share
from qrag_jax.measures.aggregate import Difference, holm_p_values, paired_difference

Found = Mapping[str, Any]  # what is kept of a set
SEEN = {"notes_seen": "notes seen", "prompt_tokens": "prompt tokens"}
MEASURES = {"em": "EM", "f1": "F1", "claim_f1": "claim F1"}

HEAD = """# Answers with notes by language models

`python -m benchmarks.sqrag.note_answers DATA --reader MODEL --answerer MODEL --judges MODEL MODEL ...`, whose
docstring says what is done; a heading names the settings, then reader, answerer and judges.
`python -m benchmarks.sqrag.note_answers table` prints this page.
The journal's keys hold name and address of each model: http://127.0.0.1:8081/v1 for 1.5B,
http://127.0.0.1:8082/v1 for 0.5B.

95% bootstrap intervals over questions. Differences are paired by question; behind each stand how many questions changed
and p of the sign-flip test, as few changed questions make an interval too narrow. **Bold** are differences whose
interval leaves 0 out and whose p is below .05.
{family}

`both` are the notes of `mentions` and of the language model. `insert` shows notes behind their chunks, `inside` the
same notes in them, `hidden` none, all beside the chunks that `insert` finds. Notes seen are those that the answerer
reads beside 5 chunks, prompt tokens its own; means over the questions. Claim F1 is the mean of the judges, of the
questions that all of them gave verdicts on, F1 by a judge its own; small judges err, and the first of them also wrote
the notes and the answers where names are equal. Questions of hotpot and musique and stories of qa2 are drawn with seed
{seed}; the ten questions of squality are about two stories, and count as independent."""


def page(done: Mapping[str, Found], seed: int) -> str:
    """Markdown."""
    parts = [HEAD.format(seed=seed, family=family_told(done.values()))]
    for key, found in done.items():
        is_answered = "condition" in found["rows"][0]
        parts += [f"## {key}", "\n".join(answers(found) if is_answered else stories(found))]
        parts += ["\n".join(differences(found))] if is_answered else []
        parts += about(found)
        parts += machines({"machine": found["machine"]})
    return "\n\n".join(parts)


def answers(found: Found) -> list[str]:
    """A row a condition: what the answerer read, and scores of its answers."""
    rows = found["rows"]
    judges = [name for name in rows[0] if name.startswith("claim_f1 of ")]
    measured = [name for name in MEASURES if name in rows[0]]
    seen = [name for name in SEEN if name in rows[0]]
    heads = ["notes by", "notes", *(SEEN[name] for name in seen), "all gold", *(MEASURES[name] for name in measured)]
    cells = [[*heads, *(name_of(name) for name in judges)]]
    for row in rows:
        gold = "" if row["all_gold"] is None else share(row["all_gold"], 2)
        read = [f"{row[name]:,.{digits}f}" for name, digits in zip(SEEN, (1, 0), strict=True) if name in row]
        scores = [*(interval(row[name], 2) for name in measured), *(share(row[name]["mean"], 2) for name in judges)]
        cells.append([row["condition"], f"{row['n_notes']:,}", *read, gold, *scores])
    return align(cells, [False, *[True] * (len(cells[0]) - 1)], markdown=True)


def differences(found: Found) -> list[str]:
    """A row a condition: its scores minus those of the one that it is compared with."""
    than, paired = than_of(found), paired_differences(found)
    measures = list(dict.fromkeys(measure for _, measure in paired))
    cells = [[f"minus {than}", *(name_of(measure) for measure in measures)]]
    for condition in (name for name in found["scores"] if name != than):
        told = [paired.get((condition, measure)) for measure in measures]
        cells.append([condition, *("" if one is None else difference(one) for one in told)])
    return align(cells, [False, *[True] * len(measures)], markdown=True)


def paired_differences(found: Found) -> dict[tuple[str, str], Difference]:
    """EM, F1 and each judge's F1 by condition and measure, over the questions that both have a score of."""
    than = found["scores"][than_of(found)]
    paired = {}
    for condition, own in found["scores"].items():
        for measure in own:
            both = np.array([own[measure], than[measure]], np.float64)  # None becomes NaN
            both = both[:, np.isfinite(both).all(axis=0)]
            if own is not than and is_compared(measure) and both.size:
                paired[condition, measure] = paired_difference(*both)
    return paired


def is_compared(measure: str) -> bool:
    return measure in ("em", "f1") or measure.startswith("claim_f1 of ")


def than_of(found: Found) -> str:
    """The condition that the others are compared with."""
    return found.get("than", "none")


def name_of(measure: str) -> str:
    return MEASURES.get(measure) or measure.replace("claim_f1 of", "F1 by")


def family_told(all_found: Iterable[Found]) -> str:
    """All differences of the page are one family."""
    p_values = [one.p_value for found in all_found if "scores" in found for one in paired_differences(found).values()]
    if not p_values:
        return ""
    least = share(min(holm_p_values(p_values)), 2)
    return (
        f"The page has {len(p_values)} differences; the least p is {share(min(p_values))}, {least} after Holm's "
        "correction for all of them."
    )


def stories(found: Found) -> list[str]:
    """A row a reader and mode: what notes find."""
    cells = [["reader", "mode", "notes", *(f"all gold at {k}" for k in KS)]]
    by_mode: dict[tuple[str, str], dict[int, Found]] = {}
    for row in found["rows"]:
        by_mode.setdefault((row["reader"], row["mode"]), {})[row["k"]] = row
    for (reader, mode), rows in by_mode.items():
        cells.append(
            [
                reader,
                mode,
                f"{rows[K]['n_notes']:,}",
                *(interval(rows[k], 2, names=("all_gold", "low", "high")) for k in KS),
            ]
        )
    return align(cells, [False, False, *[True] * (1 + len(KS))], markdown=True)


def about(found: Found) -> Iterator[str]:
    """What was read, what became of it, and what it took."""
    one, stages = found["reading"], found["reading_in_all"]
    if found.get("reader_failed"):
        yield "**The reader failed**: it kept so few notes that rows of them say nothing."
    unreadable = sum(of.get("answer not readable", 0) for of in left_out(found))
    prompts = one["num_chunks"] + one["num_pairs"]
    told = f"{one['num_chunks']:,} chunks, {one['num_questions']:,} questions, {one['num_pairs']:,} pairs of chunk and "
    told += f"question; {prompts - unreadable:,} of {prompts:,} answers parsed; {one['num_notes']:,} notes"
    cross = cross_chunk_share(found["rows"])
    if cross is not None and one["num_notes"]:
        told += f", {share(cross, 2)} of them from another chunk"
    reasons = [f"{number:,} {reason}" for of in left_out(found) for reason, number in of.items()]
    yield told + (f". No notes: {', '.join(reasons)}." if reasons else ".")
    cells = [["stage", "calls", "tokens read", "written", "calls a 1,000 chunks", "read", "written"]]
    for stage, spent in stages.items():
        numbers = [spent[name] for name in ("calls", "read", "written")]
        a_thousand = [1000 * number / one["num_chunks"] for number in numbers]
        cells.append([stage, *(f"{number:,}" for number in numbers), *(f"{number:,.0f}" for number in a_thousand)])
    yield "\n".join(align(cells, [False, *[True] * 6], markdown=True))
    asked_again = one["num_calls"] + one["num_from_journal"] - sum(spent["calls"] for spent in stages.values())
    if asked_again:
        yield f"{asked_again:,} more calls asked again for an answer that could not be read."
    if one["num_calls"] and "seconds" in found:
        rate = found["seconds"] / one["num_calls"]
        asked = sum(spent["calls"] for spent in stages.values()) / one["num_chunks"]
        yield (
            f"{one['num_calls']:,} of these calls were made in this run, {rate:.1f} seconds each on the machine below: "
            f"{1000 * rate * asked:,.0f} seconds a 1,000 chunks."
        )
    if "agreement" in found:
        same = found["agreement"]
        raw, alpha = ("-" if same[name] is None else share(same[name], 2) for name in ("raw", "alpha"))
        told = f"Judges gave the same verdict on {raw} of {same['num_items']:,} claims (Krippendorff's alpha {alpha})"
        yield f"{told}; answers without a claim score: {found['unscored'] or 'none'}. {' '.join(judges_told(found))}"


def cross_chunk_share(rows: Sequence[Found]) -> float | None:
    """Of the notes that the language model wrote; None where no row has them alone."""
    if "condition" not in rows[0]:
        return next((row["cross_chunk_share"] for row in rows if row["reader"] != "scripted"), None)
    row = next((row for row in rows if row["condition"] in ("llm", "llm, insert") and row["n_notes"]), None)
    return None if row is None else row["n_cross_chunk"] / row["n_notes"]


def judges_told(found: Found) -> Iterator[str]:
    """True if each judge tells answers apart: how its claim F1 goes with the words' F1, over all answers."""
    answers = list(found["scores"].values())
    for name in (name for name in answers[0] if name.startswith("claim_f1 of ")):
        both = [(f1, own) for one in answers for f1, own in zip(one["f1"], one[name], strict=True) if own is not None]
        words, own = np.array(both).T
        varies = len(set(own.tolist())) > 1 < len(set(words.tolist()))
        goes = (
            f"goes with token F1 by a correlation of {share(np.corrcoef(words, own)[0, 1], 2)}"
            if varies
            else "is constant"
        )
        yield f"F1 by {name.removeprefix('claim_f1 of ')} {goes}{by_match(answers, name)}."


def by_match(answers: Sequence[Found], name: str) -> str:
    """Mean of a judge's F1 over the answers that match a reference exactly, and over the others."""
    if "em" not in answers[0]:
        return ""
    both = [(em, own) for one in answers for em, own in zip(one["em"], one[name], strict=True) if own is not None]
    exact, own = np.array(both).T
    told = [share(own[chosen].mean(), 2) if chosen.any() else "-" for chosen in (exact == 1, exact != 1)]
    return f"; {told[0]} of exact answers, {told[1]} of the others"


def left_out(found: Found) -> list[Mapping[str, int]]:
    """By reason; of stories by reader, without those that a script makes."""
    counts = found["left_out"]
    if "condition" in found["rows"][0]:
        return [counts]
    return [own for reader, own in counts.items() if reader != "scripted"]


def difference(one: Difference) -> str:
    told = interval(one, 2, "+")
    return f"{f'**{told}**' if one.is_significant else told} ({one.changed}, p {share(one.p_value)})"
