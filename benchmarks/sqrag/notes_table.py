"""The page of `benchmarks/sqrag/notes.py table`: goals and tables from the rows that it keeps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import interval
from qrag_jax.eval.study.records import FEWEST_DOCUMENTS
from qrag_jax.eval.tables import align, share
from qrag_jax.measures.aggregate import (
    FEWEST_CHANGED,
    LEVEL,
    Difference,
    Harm,
    Summary,
    holm_p_values,
    no_harm,
    over_seeds,
)

KS = (2, 4, 5, 10)
K = 4  # of the paired differences
HARM_PAIRS = {"best_of": "none", "insert": "none", "best_of+bm25": "none+bm25"}
MARGIN = 0.01  # of recall, that a mode may lose where nothing has to be bridged
STORY_READERS = ("stories", "stories, wrong 0.2", "novels")
COSTS = (("embedded_at_query", 1.0), ("seconds", 1000.0))
Found = Mapping[str, Any]  # what a file of rows holds

HEAD = """# Notes that bridge chunks

Commands (docstring of `benchmarks/sqrag/notes.py`; with the GLIBC_TUNABLES of the Makefile):

    python -m benchmarks.sqrag.notes DATA --only multihop
    python -m benchmarks.sqrag.notes DATA --only harm
    python -m benchmarks.sqrag.notes DATA --only stories --stories {stories}
    python -m benchmarks.sqrag.notes DATA --only speed
    python -m benchmarks.sqrag.notes DATA --only ceilings
    qrag train --config_path configs/qrag/multihop_latent.yaml --out LINKS 'data.paths=[hotpot:F, musique:F, 2wiki:F]'
    qrag train ... --out LATENT env.links=false
    qrag train --config_path configs/qrag/multihop_text.yaml --out TEXT ...
    python -m benchmarks.sqrag.notes DATA --only runs --qrag_run "latent with links=LINKS" latent=LATENT
    python -m benchmarks.sqrag.notes DATA --only runs --qrag_run text=TEXT
    python -m benchmarks.sqrag.notes table > benchmarks/sqrag/results/notes.md

Embedded MiniLM. The defaults (`best_of` and its cap, 10 notes a question, titles and headings as names and how they are
written, 8 notes a chunk) were **chosen on these dev sets**: no row is of held-out questions. HotpotQA and
2WikiMultihopQA were made along names that lead from page to page, which `mentions` reads; MuSiQue was not.

Intervals are 95%, by bootstrap over questions; of several seeds the mean, with an interval for other stories and other
seeds (`over_seeds`). p: sign-flip test of the questions, of several seeds the largest. `*`: the interval leaves out 0,
and p is below .05 after Holm's correction for all {family} differences of this page. Milliseconds are of a machine that
did other work beside, and of each question with its own embedding; those of a run are the mean of all, with what is
compiled. A reader that is `wrong` names another place and quotes the right sentence: its notes still belong to the
chunk that answers."""


@dataclass(frozen=True)
class Told:
    """A paired difference (of several seeds their mean), its 95% interval, and p before and after Holm's correction."""

    mean: float
    low: float
    high: float
    p_value: float
    p_holm: float

    @property
    def is_significant(self) -> bool:
        return (self.low > 0 or self.high < 0) and self.p_holm < LEVEL

    def __str__(self) -> str:
        return interval(self, 2, "+") + "*" * self.is_significant


Differences = Mapping[tuple[str, str, str], Told]  # by table, mode and the mode it is compared with
HarmTests = Mapping[tuple[str, str], tuple[Harm, str]]  # by set and mode: the test, and the units that it draws


def page(rows: Found, runs: Found, harm: Found, speed: Found) -> str:
    """Markdown; a part without rows is not there."""
    parts = {"Paragraphs": of_paragraphs(rows), "Q-RAG runs": of_runs(runs), "Stories": of_stories(rows)}
    tables = {name: found for part in parts.values() for name, found in part.items()}
    told, tests = all_differences(tables), harm_tests(harm)
    stories = max((found[0]["rows"][0]["n"] for found in parts["Stories"].values()), default=500)
    lines = [HEAD.format(stories=stories, family=len(told)), "## Goals", *_lines(goals(tables, told, tests, speed))]
    absent = missing(rows, runs, harm)
    lines += (
        [f"**Not measured yet** (the commands go on where they were stopped): {', '.join(absent)}."] if absent else []
    )
    for title, part in parts.items():
        lines += [f"## {title}"] if part else []
        for name, found in part.items():
            lines += [f"### {name}", *_lines(one_table(name, found, told)), about(name, found, tables, told)]
    lines += ["## Harm", HARM, *_lines(harm_table(tests))] if tests else []
    lines += ["## Speed", *_lines(speed_table(speed))] if speed else []
    return "\n\n".join([*lines, "## Machine", *_lines(machines(rows, runs, harm, speed))])


HARM = f"""Recall, the share of the evidence sentences that stand in the first chunks that 1,000 tokens hold: the mode
minus the same search without notes. Documents are drawn, and their signs flipped, with all their questions; of Chroma,
which has three, questions. `lowest` is the one-sided 95% limit of the difference, p of its sign-flip test, not
corrected for the tests of this table. `changed`, `worse` and `better` count questions. Harm is `untested` where fewer
than {FEWEST_CHANGED} of the drawn units changed; a document changed where the differences of its questions do not add
up to 0. Else it is `none` where `lowest` lies above -{share(MARGIN, 2)}, `harm` where the mode is
significantly below by interval and p, and `not excluded` elsewhere."""


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


def goals(tables: Mapping[str, Sequence[Found]], told: Differences, tests: HarmTests, speed: Found) -> list[str]:
    """What was to be reached, what is found, and whether it holds."""
    found = [*_bridges(told), *_harmless(tests), *_selected(tables, told), *_quick(speed)]
    return align([("goal", "found", "holds"), *found], markdown=True)


def _holds(holds: bool) -> str:
    return "yes" if holds else "**no**"


def _bridges(told: Differences) -> Iterator[tuple[str, str, str]]:
    for key, least in (("hotpot", 0.15), ("2wiki", 0.15), ("musique", -0.03)):
        for name in (key, f"{key} more"):
            if one := told.get((name, "best_of", "none")):
                if least > 0:
                    goal = f"at least {share(least, 2, '+')}, significantly above 0"
                    holds = one.mean >= least and one.is_significant
                else:
                    goal, holds = f"above {share(least, 2, '+')}, with its interval", one.low > least
                yield f"{name}: best_of minus none at {K} {goal}", f"{one}, p {_p_value(one)}", _holds(holds)


def _harmless(tests: HarmTests) -> Iterator[tuple[str, str, str]]:
    for (key, mode), (test, _) in tests.items():
        if key.endswith(", titles and headings"):
            difference, lowest = _difference(test)
            shown = f"{difference}, lowest {lowest}" if lowest else difference
            goal = f"{key.partition(',')[0]}: {mode} loses at most {share(MARGIN, 2)}"
            yield goal, shown, test.verdict if test.verdict == "untested" else _holds(test.verdict == "none")


def _selected(tables: Mapping[str, Sequence[Found]], told: Differences) -> Iterator[tuple[str, str, str]]:
    for name, found in tables.items():
        if _is_story(name) and name.endswith(" stories"):
            rows, more = [_row(one, "insert", K) for one in found], told[name, "insert", "random"]
            of = f" (n {rows[0]['n']}, seeds: {len(rows)})"
            holds = float(np.mean([row["all_gold"] for row in rows])) >= 0.65
            yield f"{name}: insert at {K} at least .65", _over_seeds(rows) + of, _holds(holds)
            yield f"{name}: insert minus random at {K} at least +.25", f"{more}{of}", _holds(more.mean >= 0.25)


def _quick(speed: Found) -> Iterator[tuple[str, str, str]]:
    ms = {(row["notes"], row["mode"]): row["ms"] for row in speed.get("rows", ())}
    for number in sorted({number for number, _ in ms}):
        times = ms[number, "best_of"] / ms[number, "none"]
        yield f"{number:,} notes: best_of at most twice the time of none", f"{times:.2f} times", _holds(times <= 2)


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


def all_differences(tables: Mapping[str, Sequence[Found]]) -> Differences:
    """Every paired difference of all tables, of several seeds their mean: one family of Holm's correction."""
    found: dict[tuple[str, str, str], tuple[float, float, float, float]] = {}
    for name, seeds in tables.items():
        for mode, other in dict.fromkeys((one["mode"], one["other"]) for one in seeds[0]["differences"]):
            own = [d for one in seeds for d in one["differences"] if (d["mode"], d["other"]) == (mode, other)]
            mean = over_seeds([Summary(d["mean"], d["low"], d["high"], d["n"]) for d in own], bounds=(-1, 1))
            found[name, mode, other] = mean.mean, mean.low, mean.high, max(d["p_value"] for d in own)
    corrected = holm_p_values([p_value for *_, p_value in found.values()])
    return {key: Told(*values, p_holm) for (key, values), p_holm in zip(found.items(), corrected, strict=True)}


def one_table(name: str, found: Sequence[Found], told: Differences) -> list[str]:
    """All gold at each k, and the paired difference at 4; of several seeds as the mean, with its interval."""
    heads = "mode", *(f"all gold at {k}" for k in KS), "recall at 4", f"minus none at {K}", "p", "embedded", "ms"
    cells: list[tuple[str, ...]] = [heads]
    for mode in dict.fromkeys(row["mode"] for row in found[0]["rows"]):
        own = [[row for row in one["rows"] if row["mode"] == mode] for one in found]
        values = [_over_seeds([rows[column] for rows in own]) for column in range(len(KS))]
        recall = share(float(np.mean([rows[KS.index(K)]["recall"] for rows in own])), 2)
        cost = [f"{np.mean([rows[0][name] for rows in own]) * scale:.1f}" for name, scale in COSTS]
        one = told.get((name, mode, "none"))
        difference = ("", "") if one is None else (str(one), _p_value(one))
        cells.append((mode, *values, recall, *difference, *cost))
    return align(cells, [False, *[True] * (len(heads) - 1)], markdown=True)


def about(name: str, found: Sequence[Found], tables: Mapping[str, Sequence[Found]], told: Differences) -> str:
    """What was searched, what the reader left out, and how modes differ beside `none`."""
    facts = found[0]["rows"][0]
    said = [f"n {facts['n']}" + f" of each of {len(found)} seeds" * (len(found) > 1)]
    said.append(f"{facts['n_chunks']:,} chunks, {facts['n_notes']:,} notes by {facts['reader']}")
    said += _ceilings(found)
    said += [f"run {run}: {how}" for run, how in found[0].get("trained", {}).items()]
    said += [f"{number:,} notes left out ({reason})" for reason, number in found[0]["left_out"]["notes"].items()]
    for mode in ("insert", "best_of"):
        if one := told.get((name, mode, "random")):
            said.append(f"{mode} minus random at {K}: {one}, p {_p_value(one)}")
    honest = tables.get(name.partition(", wrong")[0]) if ", wrong" in name else None
    if honest:
        for mode in ("insert", "best_of"):
            own, right = (
                float(np.mean([_row(one, mode, K)["all_gold"] for one in each[: len(found)]]))
                for each in (found, honest)
            )
            said.append(f"{mode} at {K} minus that of the reader that is never wrong: {share(own - right, 3, '+')}")
    return "; ".join(said)


def _ceilings(found: Sequence[Found]) -> list[str]:
    """Where some questions have more gold chunks than k."""
    own = {k: [row["ceiling"] for one in found for row in one["rows"] if row["k"] == k] for k in KS}
    ceilings = [f"{share(float(np.mean(values)), 2)} at {k}" for k, values in own.items() if min(values) < 1]
    return [f"all gold is at most {', '.join(ceilings)}: the other questions have more gold chunks"] if ceilings else []


def harm_tests(harm: Found) -> HarmTests:
    """Each mode against the same search without notes, by document where there are enough of them."""
    tests = {}
    for key, value in harm.items():
        if key == "machine":
            continue
        number, recall = len(set(value["documents"])), value["recall"]
        groups = value["documents"] if number >= FEWEST_DOCUMENTS else None
        for mode, other in HARM_PAIRS.items():
            if mode in recall:
                test = no_harm(np.array(recall[mode]), np.array(recall[other]), MARGIN, groups=groups)
                units = f"{len(recall[mode])} questions" if groups is None else f"{number} documents"
                tests[key, mode] = test, units
    return tests


def harm_table(tests: HarmTests) -> list[str]:
    heads = "set and names", "mode", "drawn", "changed", "worse", "better", "difference", "lowest", "p", "harm"
    cells: list[tuple[str, ...]] = [heads]
    for (key, mode), (test, units) in tests.items():
        one = test.difference
        counts = str(one.changed), str(one.worse), str(one.better)
        cells.append((key, mode, units, *counts, *_difference(test), _p_value(one), test.verdict))
    return align(cells, [False, False, *[True] * 7, False], markdown=True)


def speed_table(speed: Found) -> list[str]:
    cells = [("notes", "chunks", "mode", "ms a question", "MB of vectors")]
    for row in speed["rows"]:
        counts = f"{row['notes']:,}", f"{row['chunks']:,}"
        cells.append((*counts, row["mode"], f"{row['ms']:.1f}", f"{row['bytes'] / 1e6:.1f}"))
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


def _row(found: Found, mode: str, k: int) -> Found:
    return next(row for row in found["rows"] if (row["mode"], row["k"]) == (mode, k))


def _difference(test: Harm) -> tuple[str, str]:
    """The difference with its interval, and its one-sided limit; where no question changed the difference alone."""
    one = test.difference
    if not one.changed:
        return share(one.mean, 3, "+"), ""
    return interval(one, 3, "+"), share(test.lowest, 3, "+")


def _p_value(one: Told | Difference) -> str:
    return "<.001" if one.p_value < 0.001 else share(one.p_value)


def _over_seeds(rows: Sequence[Found]) -> str:
    mean = over_seeds([Summary(row["all_gold"], row["low"], row["high"], row["n"]) for row in rows])
    return share(mean.mean, 2) if len(rows) == 1 else interval(mean, 2)
