"""The page of `benchmarks/notes.py table`: goals and tables from the rows that it keeps."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.eval.tables import align, share

KS = (2, 4, 5, 10)
K = 4  # of the paired differences
HARM_PAIRS = {"best_of": "none", "insert": "none", "best_of+bm25": "none+bm25"}
STORY_READERS = ("stories", "stories, wrong 0.2", "novels")
COSTS = (("embedded_at_query", 1.0), ("seconds", 1000.0))
Found = Mapping[str, Any]  # what a file of rows holds

HEAD = """# Notes that bridge chunks

Commands (docstring of `benchmarks/notes.py`; with the GLIBC_TUNABLES of the Makefile):

    python benchmarks/notes.py DATA --only multihop
    python benchmarks/notes.py DATA --only harm
    python benchmarks/notes.py DATA --only stories --stories {stories}
    python benchmarks/notes.py DATA --only speed
    qrag train --config_path configs/qrag/multihop_latent.yaml --out LINKS 'data.paths=[hotpot:F, musique:F, 2wiki:F]'
    qrag train ... --out LATENT env.links=false
    qrag train --config_path configs/qrag/multihop_text.yaml --out TEXT ...
    python benchmarks/notes.py DATA --only runs --qrag_run "latent with links=LINKS" latent=LATENT
    python benchmarks/notes.py DATA --only runs --qrag_run text=TEXT
    python benchmarks/notes.py table > benchmarks/results/notes.md

Embedded MiniLM. The defaults (`best_of` and its cap, 10 notes a question, titles and headings as names and how they are
written, 8 notes a chunk) were **chosen on these dev sets**: no row is of held-out questions. HotpotQA and
2WikiMultihopQA were made along names that lead from page to page, which `mentions` reads; MuSiQue was not.

Intervals are 95%, by bootstrap over questions; several seeds: mean [smallest, largest], and a paired difference of
each. Milliseconds are of a machine that did other work beside, and of each question with its own embedding; those of a
run are the mean of all, with what is compiled. A reader that is `wrong` names another place and quotes the right
sentence: its notes still belong to the chunk that answers."""


def page(rows: Found, runs: Found, harm: Found, speed: Found) -> str:
    """Markdown; a part without rows is not there."""
    stories = {value["rows"][0]["n"] for key, value in rows.items() if _is_story(key)}
    parts = [HEAD.format(stories=max(stories, default=500)), "## Goals", *_lines(goals(rows, harm, speed))]
    absent = missing(rows, runs, harm)
    parts += (
        [f"**Not measured yet** (the commands go on where they were stopped): {', '.join(absent)}."] if absent else []
    )
    for title, tables in (
        ("Paragraphs", of_paragraphs(rows)),
        ("Q-RAG runs", of_runs(runs)),
        ("Stories", of_stories(rows)),
    ):
        parts += [f"## {title}"] if tables else []
        for name, found in tables.items():
            parts += [f"### {name}", *_lines(one_table(found)), about(name, found, tables)]
    parts += ["## Harm", HARM, *_lines(harm_table(harm))] if harm else []
    parts += ["## Speed", *_lines(speed_table(speed))] if speed else []
    return "\n\n".join([*parts, "## Machine", *_lines(machines(rows, runs, harm, speed))])


HARM = """Share of the evidence sentences in the first chunks that 1,000 tokens hold; the mode minus the same search
without notes. Where a difference is .000 of all modes, titles and headings gave no note that changed a question."""


def _lines(table: Sequence[str]) -> list[str]:
    return ["\n".join(table)]


def _is_story(key: str) -> bool:
    return key.startswith("qa")


def missing(rows: Found, runs: Found, harm: Found) -> list[str]:
    """Tables that are not there, and stories that are fewer than 500 or of fewer than 3 seeds."""
    wanted = [kind + what for what in ("", " more", " inserted") for kind in ("hotpot", "2wiki", "musique")]
    absent = [name for name in wanted if name not in rows]
    for name in (f"{task} {filler}" for task in ("qa2_valid", "qa3_valid") for filler in STORY_READERS):
        found = of_stories(rows).get(name, [])
        num_stories = min((one["rows"][0]["n"] for one in found), default=0)
        if len(found) < 3 or num_stories < 500:
            absent.append(f"{name} ({num_stories} of 500 stories, {len(found)} of 3 seeds)")
    sets = {key.partition(",")[0] for key in harm}
    if not any("questions" not in key for key in runs):
        absent.append("Q-RAG runs as their configs train them, on whole pools")
    return [*absent, *(f"harm on {name}" for name in ("squad", "chroma", "scisumm") if name not in sets)]


def goals(rows: Found, harm: Found, speed: Found) -> list[str]:
    """What was to be reached, what is found, and whether it holds."""
    found = [*_bridges(rows), *_harmless(harm), *_selected(rows), *_quick(speed)]
    cells = [(goal, shown, "yes" if holds else "**no**") for goal, shown, holds in found]
    return align([("goal", "found", "holds"), *cells], markdown=True)


def _bridges(rows: Found) -> Iterator[tuple[str, str, bool]]:
    for key, least, apart in (("hotpot", 0.15, True), ("2wiki", 0.15, True), ("musique", -0.03, False)):
        for name in (key, f"{key} more"):
            if name in rows:
                one = _difference(rows[name], "best_of", "none")
                goal = f"{name}: best_of minus none at {K} at least {share(least, 2, '+')}" + ", interval apart" * apart
                yield goal, _interval(one, 2), one["mean"] >= least and (not apart or one["low"] > 0)


def _harmless(harm: Found) -> Iterator[tuple[str, str, bool]]:
    for key, value in harm.items():
        if key.endswith(", titles and headings"):
            for one in value["differences"]:
                goal = f"{key.partition(',')[0]}: {one['mode']} minus {one['other']} not below -.01"
                yield goal, _interval(one, 3), one["mean"] >= -0.01


def _selected(rows: Found) -> Iterator[tuple[str, str, bool]]:
    for name, found in of_stories(rows).items():
        if name.endswith(" stories"):
            value = float(np.mean([_row(one, "insert", K)["all_gold"] for one in found]))
            more = value - float(np.mean([_row(one, "random", K)["all_gold"] for one in found]))
            of = f" (n {found[0]['rows'][0]['n']}, seeds: {len(found)})"
            yield f"{name}: insert at {K} at least .65", share(value, 2) + of, value >= 0.65
            yield f"{name}: insert minus random at {K} at least +.25", share(more, 2, "+") + of, more >= 0.25


def _quick(speed: Found) -> Iterator[tuple[str, str, bool]]:
    ms = {(row["notes"], row["mode"]): row["ms"] for row in speed.get("rows", ())}
    for number in sorted({number for number, _ in ms}):
        times = ms[number, "best_of"] / ms[number, "none"]
        yield f"{number:,} notes: best_of at most twice the time of none", f"{times:.2f} times", times <= 2


def of_paragraphs(rows: Found) -> dict[str, list[Found]]:
    return {key: [value] for key, value in rows.items() if not _is_story(key)}


def of_runs(runs: Found) -> dict[str, list[Found]]:
    return {key: [value] for key, value in runs.items()}


def of_stories(rows: Found) -> dict[str, list[Found]]:
    """By set, filler and reader: one table of all its seeds."""
    grouped: dict[str, list[Found]] = {}
    for key, value in rows.items():
        if _is_story(key):
            grouped.setdefault(key.rsplit(" ", 1)[0], []).append(value)
    return dict(sorted(grouped.items()))


def one_table(found: Sequence[Found]) -> list[str]:
    """All gold at each k, and the paired difference at 4; of several seeds as the mean, and its range."""
    heads = "mode", *(f"all gold at {k}" for k in KS), "recall at 4", f"minus none at {K}", "embedded", "ms"
    cells: list[tuple[str, ...]] = [heads]
    for mode in dict.fromkeys(row["mode"] for row in found[0]["rows"]):
        own = [[row for row in one["rows"] if row["mode"] == mode] for one in found]
        values = [_spread([rows[column]["all_gold"] for rows in own]) for column in range(len(KS))]
        recall = _spread([rows[KS.index(K)]["recall"] for rows in own])
        cost = [f"{np.mean([rows[0][name] for rows in own]) * scale:.1f}" for name, scale in COSTS]
        cells.append((mode, *values, recall, _paired(found, mode, "none"), *cost))
    return align(cells, [False, *[True] * (len(heads) - 1)], markdown=True)


def about(name: str, found: Sequence[Found], tables: Mapping[str, Sequence[Found]]) -> str:
    """What was searched, what the reader left out, and how modes differ beside `none`."""
    facts = found[0]["rows"][0]
    said = [f"n {facts['n']}" + f" of each of {len(found)} seeds" * (len(found) > 1)]
    said.append(f"{facts['n_chunks']:,} chunks, {facts['n_notes']:,} notes by {facts['reader']}")
    said += [f"run {run}: {told}" for run, told in found[0].get("trained", {}).items()]
    said += [f"{number:,} notes left out ({reason})" for reason, number in found[0]["left_out"]["notes"].items()]
    for mode, other in (("insert", "random"), ("best_of", "random")):
        if paired := _paired(found, mode, other):
            said.append(f"{mode} minus {other} at {K}: {paired}")
    honest = tables.get(name.partition(", wrong")[0]) if ", wrong" in name else None
    if honest:
        for mode in ("insert", "best_of"):
            own, right = (
                float(np.mean([_row(one, mode, K)["all_gold"] for one in each[: len(found)]]))
                for each in (found, honest)
            )
            said.append(f"{mode} at {K} minus that of the reader that is never wrong: {share(own - right, 3, '+')}")
    return "; ".join(said)


def harm_table(harm: Found) -> list[str]:
    cells = [("set and names", "n", *(f"{mode} minus {other}" for mode, other in HARM_PAIRS.items()))]
    for key, value in harm.items():
        if key != "machine":
            shown = {one["mode"]: _interval(one, 3) for one in value["differences"]}
            cells.append((key, str(value["n"]), *(shown.get(mode, "") for mode in HARM_PAIRS)))
    return align(cells, [False, *[True] * (len(cells[0]) - 1)], markdown=True)


def speed_table(speed: Found) -> list[str]:
    cells = [("notes", "chunks", "mode", "ms a question", "MB of vectors")]
    for row in speed["rows"]:
        cells.append(
            (f"{row['notes']:,}", f"{row['chunks']:,}", row["mode"], f"{row['ms']:.1f}", f"{row['bytes'] / 1e6:.1f}")
        )
    return align(cells, [True, True, False, True, True], markdown=True)


def machines(*files: Found) -> list[str]:
    """Each machine and commit that rows are of, once."""
    values = [value for found in files for value in (*found.values(), found.get("machine")) if isinstance(value, dict)]
    told = [
        f"* {one['cores']} cores {one['device']}, {one['processor']}, jax {one['jax']}, commit {one['commit']}"
        for one in values
        if "commit" in one
    ]
    return list(dict.fromkeys(told)) or ["none"]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _row(found: Found, mode: str, k: int) -> Found:
    return next(row for row in found["rows"] if (row["mode"], row["k"]) == (mode, k))


def _difference(found: Found, mode: str, other: str) -> Found:
    return next(one for one in found["differences"] if (one["mode"], one["other"]) == (mode, other))


def _paired(found: Sequence[Found], mode: str, other: str) -> str:
    """The difference and its interval, of every seed."""
    own = [d for one in found for d in one["differences"] if (d["mode"], d["other"]) == (mode, other)]
    return "; ".join(_interval(one, 2) for one in own)


def _interval(one: Found, digits: int) -> str:
    mean, low, high = (share(one[name], digits, "+") for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _spread(values: Sequence[float]) -> str:
    shown = share(float(np.mean(values)), 2)
    return shown if len(values) == 1 else f"{shown} [{share(min(values), 2)}, {share(max(values), 2)}]"
