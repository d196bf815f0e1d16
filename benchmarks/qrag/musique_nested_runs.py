"""MuSiQue: the learner itself in the outer folds of `musique_nested.py`, then the frozen config on dev, once.

    python -m benchmarks.qrag.musique_nested_runs outer DATA [--runs DIR]    # each fold's choice, still towers, longer
    python -m benchmarks.qrag.musique_nested_runs dev DATA [--runs DIR]  # three seeds of the frozen config; once alone
    python -m benchmarks.qrag.musique_nested_runs table  # benchmarks/qrag/results/multihop/musique_nested.md

All goes through `qrag train` and `qrag eval`. `outer` reads no dev file. Runs that are in DIR are not
trained again. Run it with the GLIBC_TUNABLES of the Makefile.
"""

import gzip
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.common import CONFIGS, arguments, grid, machine, qrag
from benchmarks.qrag.multihop import RESULTS, SETS
from qrag_jax.data.questions.multihop import READERS
from qrag_jax.eval.retrieval.records import read_records, read_rows
from qrag_jax.measures.aggregate import Summary, mean_interval, over_seeds, paired_difference

FOLDS = RESULTS / "musique_nested.json"
FLAGS = {"present": (False, False), "coverage": (False, True), "all new": (True, False), "all": (True, True)}
SEEDS, MUSIQUE = (0, 1, 2), ("train", "train_more")
STILL = ["learner.groups={state/*: {frozen: true}, action/*: {frozen: true}}"]  # towers that stay the prior
VARIANTS = {
    "chosen": [],
    "still": STILL,
    "still, longer": [*STILL, "num_updates=600"],
}  # longer: three times the updates of the config


def paths_of(data: Path, musique: Sequence[Path], kinds: Sequence[str]) -> str:
    """`data.paths` of train files, MuSiQue's as given."""
    files = [(kind, [data / folder / "train.jsonl.gz"]) for kind, folder in SETS.items()]
    named = [f"{k}:{file}" for k, own in files if k in kinds for file in (musique if k == "musique" else own)]
    return f"data.paths=[{', '.join(named)}]"


def overrides_of(choice: Sequence, data: Path, musique: Sequence[Path]) -> list[str]:
    """A choice of `musique_nested.choose` as overrides of the config before; inputs that the library has."""
    mix, inputs, width = choice
    bridges, coverage = FLAGS[inputs]
    paths = paths_of(data, musique[:1] if mix == "old" else musique, ["musique"] if mix == "alone" else list(SETS))
    weights = ["data.weights={musique: 6, hotpot: 1, 2wiki: 5}"] if mix == "half" else []
    return [paths, f"env.bridges={bridges}", f"env.coverage={coverage}", f"env.link_width={width}", *weights]


def facts(trained: Path, kind: str, file: Path, found: Path) -> dict[str, float]:
    """Fact EM of a run's four picks on every question, by its id."""
    qrag("eval", trained, f"--{kind}", file, "--methods", "trained", "--protocol", "fixed", "--per_query", found)
    return {record.query_id: record.fact_em for record in read_records(found)}


def outer(data: Path, runs: Path) -> None:
    """Fact EM of every question in its fold: each fold's choice, with frozen towers, and with more updates of those."""
    known, start = json.loads(FOLDS.read_text()), time.perf_counter()
    rows = [(part, line) for part in MUSIQUE for line in read_lines(data / f"musique/{part}.jsonl.gz")]
    assert [json.loads(line)["id"] for _, line in rows] == known["ids"]
    values: dict[str, dict[str, float]] = {}
    for k, chosen in enumerate(known["chosen"]):
        folder = runs / f"fold_{k}"
        folder.mkdir(parents=True, exist_ok=True)
        files = {part: folder / f"{part}.jsonl" for part in (*MUSIQUE, "test")}
        lines: dict[str, list[str]] = {part: [] for part in files}
        for (part, line), fold in zip(rows, known["fold"], strict=True):
            lines["test" if fold == k else part].append(line)
        for part, file in files.items():
            file.write_text("".join(lines[part]))
        choice = chosen["chosen"]
        for name, more in VARIANTS.items():
            out, flags = folder / name, overrides_of(choice, data, [files[part] for part in MUSIQUE])
            if not out.exists():
                qrag("train", "--config_path", CONFIGS / "multihop_latent.yaml", "--out", out, *flags, *more)
            found = facts(out, "musique", files["test"], folder / f"{name}.jsonl")
            print(k, name, choice, np.mean(list(found.values())), flush=True)
            values.setdefault(name, {}).update(found)
    em = {name: [own[i] for i in known["ids"]] for name, own in values.items()}
    save(learner={"em": em, "seconds": round(time.perf_counter() - start), "about": machine()})


def save(**parts: Mapping) -> None:
    """Puts parts into the file of results."""
    FOLDS.write_text(json.dumps(json.loads(FOLDS.read_text()) | parts) + "\n")


def read_lines(path: Path) -> list[str]:
    """Lines of a .jsonl.gz, with their ends."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(file)


def dev(data: Path, runs: Path) -> None:
    """Trains the frozen config with three seeds and scores it on dev; counts the dev gold that stands in train.

    Refused where dev was printed before, as a second look would choose by it.
    """
    if "dev" in json.loads(FOLDS.read_text()):
        raise SystemExit(f"{FOLDS}: dev was printed already, and is not printed again")
    start = time.perf_counter()
    musique = [data / f"musique/{part}.jsonl.gz" for part in MUSIQUE]
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        out = runs / f"musique_latent_{seed}"
        if not out.exists():
            config, files = CONFIGS / "musique_latent.yaml", paths_of(data, musique, ["musique"])
            qrag("train", "--config_path", config, "--out", out, f"seed={seed}", files)
        for query, em in facts(out, "musique", data / "musique/dev.jsonl.gz", runs / f"dev_{seed}.jsonl").items():
            found.setdefault(query, []).append(em)
    seen = {chunk for path in musique for example in READERS["musique"](path).examples for chunk in example.chunks}
    asked = READERS["musique"](data / "musique/dev.jsonl.gz").examples
    num_seen = {example.query_id: sum(example.chunks[i] in seen for i in example.gold) for example in asked}
    num_gold = {example.query_id: len(example.gold) for example in asked}
    seconds = round(time.perf_counter() - start)
    save(dev={"em": found, "gold_seen": num_seen, "gold": num_gold, "seconds": seconds, "about": machine()})


def write_table() -> None:
    known = json.loads(FOLDS.read_text())
    parts = [_HEAD, _protocol(known), _choices(known), _outer(known)]
    parts += [_learner(known)] if "learner" in known else []
    parts += [_dev(known)] if "dev" in known else []
    (RESULTS / "musique_nested.md").write_text("\n\n".join(parts) + "\n")


_HEAD = """# MuSiQue: inputs and data chosen on train questions

Commands: `python -m benchmarks.qrag.musique_nested DATA`, then `musique_nested_runs` with `outer DATA`, `dev DATA`
and `table`. The candidates were written down before any score was seen, and dev was printed once, after the choice of
data and inputs was in `configs/qrag/musique_latent.yaml`, which then had towers that learn. Frozen towers and more
updates were compared after that, in outer folds of the train questions alone. The config has frozen towers since, and
dev was not printed again."""


def _protocol(known: Mapping) -> str:
    scored, sizes = np.array(known["scored"]), np.unique(known["groups"], return_counts=True)[1]
    return f"""## Protocol

- Questions: {len(scored)} of train and train_more. {int((~scored).sum())} of them lack the paragraph of a hop: they are
  trained on, and not scored.
- Overlap: questions that share a gold paragraph stand in one fold: {len(sizes)} groups, {int((sizes == 1).sum())} of
  one question, the largest of {sizes.max()}.
- Measure: fact EM of four greedy picks. Outer folds: 5. In each of them three inner folds, with two seeds, choose the
  data, then the inputs, then the width; ties go to the earlier candidate.
- The inner folds train a stand-in: the learner's cross-entropy on links and on the prior of the towers, without soft Q
  and without what the towers learn. The outer folds score the choice by the stand-in, three seeds. Vectors came from a
  cache.
- Data: `old` is the config before (MuSiQue's 100, HotpotQA's 100, 2WikiMultihopQA's 500), `more` has train_more
  besides, `alone` is MuSiQue's 396 without the others, `half` is `more` with MuSiQue as half of every batch.
- Inputs: `present` are the 8 link features; `no words` leaves `shared` out, `no names` `names` and `new_names`, `no
  named` `named` and `names_it`, `no titles` `title`, `own_title` and `same_title`; `coverage` is `env.coverage` beside
  them; `sentence`, `rarest`, `joint` each one new feature, `all new` the three (`env.bridges`), `all` coverage too."""


def _choices(known: Mapping) -> str:
    inner = [*[fold["inner"] for fold in known["chosen"]], known["final"]["inner"]]
    chosen = [", ".join(map(str, fold["chosen"])) for fold in [*known["chosen"], known["final"]]]
    lines = ["## Inner scores", "", "Mean fact EM of the inner folds; bold is what was chosen.", ""]
    table = []
    for name in dict.fromkeys(name for own in inner for name in own):
        cells = [f"{own[name]:.3f}" if name in own else "" for own in inner]
        cells = [f"**{x}**" if name == best else x for x, best in zip(cells, chosen, strict=True)]
        table.append([name, *cells])
    heads = ["data, inputs, width", "fold 0", "1", "2", "3", "4", "all questions"]
    return "\n".join([*lines, *grid(heads, table)])


def _outer(known: Mapping) -> str:
    scored, hops, groups = np.array(known["scored"]), np.array(known["hops"]), np.array(known["groups"]).astype(str)
    rows = {f"stand-in, {name}": np.array(values) for name, values in known["values"].items()}
    parts = {"all": scored, **{f"{h} hops": scored & (hops == h) for h in (2, 3, 4)}}
    parts["train's 100"] = scored & np.array(known["first_file"])
    lines = ["## Outer folds", "", "Fact EM; in brackets the 95% interval over groups of questions.", ""]
    table = []
    for name, values in rows.items():
        found = mean_interval(values[scored], groups=groups[scored].tolist())
        table.append([name, _interval(found), *[f"{values[own].mean():.3f}" for own in list(parts.values())[1:]]])
    lines += grid(["row", *(f"{name} ({int(own.sum())})" for name, own in parts.items())], table)
    pairs = [("stand-in, nested", f"stand-in, {name}") for name in ("untrained", "old", "more", "alone")]
    own = {name: values[scored] for name, values in rows.items()}
    lines += ["", *_differences(pairs, own, groups[scored].tolist())]
    return "\n".join([*lines, "", *_about(known, "stand-in")])


def _differences(pairs: Iterable[tuple[str, str]], rows: Mapping[str, np.ndarray], groups: list[str]) -> list[str]:
    table = []
    for first, second in pairs:
        d = paired_difference(rows[first], rows[second], groups=groups)
        counts = [f"{d.p_value:.4f}", str(d.better), str(d.worse)]
        table.append([f"{first} - {second}", _interval(d, "+"), *counts])
    return grid(["difference", "mean", "p", "better", "worse"], table)


def _learner(known: Mapping) -> str:
    scored, ems = np.array(known["scored"]), known["learner"]["em"]
    groups = np.array(known["groups"]).astype(str)[scored].tolist()
    rows = {f"learner, {name}": np.array(own, float)[scored] for name, own in ems.items()}
    rows["stand-in, nested"] = np.array(known["values"]["nested"])[scored]
    about = f"""`qrag train`, seed 0, all outer folds: {int(scored.sum())} questions. `still` is the
choice with frozen towers: they stay the prior, as in the stand-in. `longer` takes three times the updates."""
    table = [[name, _interval(mean_interval(values, groups=groups))] for name, values in rows.items()]
    lines = ["## The learner itself", "", about, "", *grid(["row", "fact EM"], table), ""]
    own = {name: rows[f"learner, {name}"] for name in ems}
    lines += _differences(pairwise(reversed(ems)), own, groups)
    return "\n".join([*lines, "", *_about(known["learner"], "learner")])


def _dev(known: Mapping) -> str:
    found, lines = known["dev"], ["## Dev, printed once", "", "Fact EM, mean of three seeds [95% interval].", ""]
    ems = np.array(list(found["em"].values()))
    means = " ".join(f"{mean:.3f}" for mean in ems.mean(axis=0))
    mean = over_seeds([mean_interval(own) for own in ems.T])
    table = [["musique_latent.yaml, towers that learn", _interval(mean), means]]
    rows = [row for seed in SEEDS for row in read_rows(RESULTS / f"latent_{seed}_musique.json")]
    before = [r for r in rows if (r.setting.method, r.setting.protocol) == ("trained", "fixed")]
    means = " ".join(f"{row.fact_em:.3f}" for row in before)
    mean = over_seeds([Summary(row.fact_em, row.em_low, row.em_high, row.n) for row in before])
    table.append(["multihop_latent.yaml (README.md), settled with dev in view", _interval(mean), means])
    lines += grid(["config", "all (80)", "seeds"], table)
    parts = {f"{h} gold": [q for q in found["em"] if found["gold"][q] == h] for h in (2, 3, 4)}
    parts |= {"no gold seen": [q for q in found["em"] if not found["gold_seen"][q]]}
    parts |= {"some gold seen": [q for q in found["em"] if found["gold_seen"][q]]}
    lines += ["", "By gold paragraphs, and by whether some of these stand in a context of train:", ""]
    em_of = lambda own: f"{np.mean([found['em'][q] for q in own]):.3f}" if own else ""  # noqa: E731
    lines += grid(["questions", "n", "fact EM"], [[name, str(len(own)), em_of(own)] for name, own in parts.items()])
    return "\n".join([*lines, "", *_about(found, "dev")])


def _interval(found, sign: str = "") -> str:
    return f"{found.mean:{sign}.3f} [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"


def _about(found: Mapping, name: str) -> list[str]:
    a = found["about"]
    took = f"{found['seconds']} s, " if "seconds" in found else ""
    return [f"- {name}: commit {a['commit']}, {took}{a['cores']} cores {a['device']}, jax {a['jax']}."]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("stage", choices=("outer", "dev", "table"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--runs", type=Path, default=Path("runs/musique_nested"))
    args = parser.parse_args()
    if args.stage == "table":
        write_table()
    elif args.data is None:
        parser.error("say where the data are: DATA")
    else:
        {"outer": outer, "dev": dev}[args.stage](args.data, args.runs)


if __name__ == "__main__":
    main()
