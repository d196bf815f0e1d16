"""A retriever without labels: multi-hop passages and three folders of real documents, beside plain search and notes.

    python -m benchmarks.qrag.learn folders DATA HTTPX OUT     # writes the documents and their questions
    python -m benchmarks.qrag.learn run OUT [--seeds 0 1 2] [--only hotpot ...] [--llm_model M]
    python -m benchmarks.qrag.learn labels OUT DATA [--seeds 0]  # HotpotQA with labels, after `run` and alone
    python -m benchmarks.qrag.learn links OUT  # how often names join the two places of a question
    python -m benchmarks.qrag.learn table  # benchmarks/qrag/results/learn/README.md

`folders` writes the pooled passages of the dev questions of HotpotQA, MuSiQue and 2WikiMultihopQA, a file each, which
is one chunk; the documentation of httpx (HTTPX is a clone of github.com/encode/httpx at ae1b9f66), a novel (The Hosts
of the Lord, of ELTeC) and 60 papers (of SciSumm). `run` is, for each folder, `qrag index build` (of passages with
`--strategy document`), `qrag learn INDEX` for each seed, and `qrag eval RUN --corpus INDEX --jsonl QUESTIONS`. `learn`
sees no question of the sets. With `--llm_model` a language model writes questions too.

`labels` trains on the first labelled train questions of HotpotQA (`--labelled`); the passages of the most of them are
one pool. It starts from untrained vectors (configs/qrag/corpus_latent.yaml), or from the run that learned from the dev
passages without labels (configs/qrag/learn_latent.yaml with `init`). Both are scored as in `run`.

The 30 questions to each of httpx, novel and papers (questions/) were written and committed before any search; 15 need
one place, 15 need two. The form of made questions and of Q was chosen on httpx and on the dev questions of the three
sets, so these are not unseen. The novel and the papers were looked at once before, and decided nothing.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.common import CONFIGS, arguments, grid, interval, machine, place, tested
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.config import load_config
from qrag_jax.data.questions.multihop import READERS
from qrag_jax.eval.retrieval.score import open_run
from qrag_jax.eval.tables import dress, new_figure, share, write_png
from qrag_jax.index.build import build_index, index_settings
from qrag_jax.index.load import load_index
from qrag_jax.llm.config import LlmConfig
from qrag_jax.measures.aggregate import holm_p_values, mean_interval, over_seeds, paired_difference
from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag.pool_search import make_pool_bank
from qrag_jax.qrag.pool_sets import corpus_pool, multihop_pool
from qrag_jax.qrag.pool_tables import PoolReader
from qrag_jax.qrag.retriever import new_retriever, with_fresh_params
from qrag_jax.qrag.tasks import Task, subset
from qrag_jax.service.learning import LearnRequest, learn
from qrag_jax.service.pooled import PooledRequest, evaluate_pool
from qrag_jax.train.qrag.config import RunConfig, split_pool
from qrag_jax.train.qrag.loop import train

RESULTS = Path(__file__).parent / "results" / "learn"
LABELLED = Path(__file__).parent / "results" / "corpus"
QUESTIONS = Path(__file__).parent / "questions"
BEAMS, BEAM_KS = (1, 2, 4), (2, 4)
NUM_LINKS = 8  # of a chunk in each way, as in configs/qrag/learn_latent.yaml
SETS = {"hotpot": "hotpotqa", "musique": "musique", "2wiki": "2wiki"}
OWN = ("httpx", "novel", "papers")
ASKED = "learned, also from a language model"
NOVEL, NOTES, KS = "ENG19005_Steel", "notes best_of+bm25", (1, 2, 4, 10)
BASELINES = ("hybrid", "single_step", "bm25", "untrained")


def write_folders(data: Path, httpx: Path, out: Path) -> None:
    """The documents of each folder, and questions of the sets with their places."""
    for kind, folder in SETS.items():
        read = READERS[kind](data / folder / "dev.jsonl.gz")
        titles = {text: read.titles[text] for one in read.examples for text in one.chunks}
        names = {text: f"{i:05d}/{title.replace('/', ' ') or i}.txt" for i, (text, title) in enumerate(titles.items())}
        bodies = {text: f"{title}\n\n{text.removeprefix(f'{title}: ')}\n" for text, title in titles.items()}
        for text, name in names.items():
            _write(out / kind / name, bodies[text])
        rows = [
            {"id": one.query_id, "question": one.question,
             "evidence": [{"file": names[one.chunks[i]], "start": 0, "end": len(bodies[one.chunks[i]])}
                          for i in one.gold]}
            for one in read.examples
        ]  # fmt: skip
        _write(out / f"{kind}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for path in sorted((httpx / "docs").rglob("*.md")):
        _write(out / "httpx" / path.relative_to(httpx / "docs"), path.read_text())
    for book in _rows(data / "novels" / "dev.jsonl.gz"):
        if book["id"] == NOVEL:
            parts = [part for one in book["sections"] for part in ([one["head"]] if one["head"] else []) + one["paras"]]
            _write(out / "novel" / "the_hosts_of_the_lord.txt", "\n\n".join(parts) + "\n")
    for paper in _rows(data / "scisumm" / "cited_papers.jsonl.gz"):
        parts = [f"# {(paper['title'] or paper['id']).strip(' *')}"]
        for one in paper["sections"]:
            parts += ["## " + " ".join(filter(None, [one["number"], one["title"] or "Untitled"]))]
            parts += [" ".join(text for _, text in one["sentences"])]
        _write(out / "papers" / f"{paper['id']}.md", "\n\n".join(parts) + "\n")
    for name in OWN:
        _write(out / f"{name}.jsonl", (QUESTIONS / f"{name}.jsonl").read_text())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, newline="")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        yield from map(json.loads, file)


def run(out: Path, names: Sequence[str], seeds: Sequence[int], model: str | None = None) -> None:
    """Learns from each folder and scores its questions; baselines are those of the first seed.

    Args:
        model: a language model that writes questions too; its runs are kept beside the others, without baselines.
    """
    kind = "" if model is None else "asked_"
    for name in names:
        index, asked = out / f"{name}.index", out / f"{name}.jsonl"
        if not index.exists():
            whole = index_settings(chunking=ChunkConfig("document")) if name in SETS else None
            build_index(index, [out / name], whole)
        for seed in seeds:
            folder, path = out / f"run_{kind}{name}_{seed}", RESULTS / f"{kind}{name}_{seed}.json"
            if path.exists():
                continue
            journal = out / f"journal_{name}_{seed}.sqlite"
            llm = None if model is None else LlmConfig(llm_model=model, journal=journal)
            learned = learn(LearnRequest((str(index),), str(folder), llm=llm, seed=seed))
            is_first = seed == seeds[0] and not kind
            methods = ("trained", *BASELINES[:-1]) if is_first else ("trained",)
            found = evaluate_pool(PooledRequest(str(folder), "jsonl", str(asked), str(index), methods=methods, ks=KS))
            kept = _kept(found.questions)
            if is_first:
                kept += untrained(folder, index, asked)
            gain = learned.gain
            about = {
                "folder": name, "seed": seed, "llm": model and Path(model).stem, "kinds": learned.kinds,
                "left_out": learned.left_out, "update": learned.update,
                "held_out": [row for row in learned.rows if not row["kind"]],
                "gain": [gain.mean, gain.low, gain.high, gain.p_value, gain.n],
                "num_chunks": found.rows[0]["num_chunks"], **machine(),
            }  # fmt: skip
            path.write_text(json.dumps({"about": about, "questions": kept}) + "\n")
            print(name, seed, learned.update, [(r["method"], r["k"], round(r["all_gold"], 3)) for r in found.rows])


def untrained(folder: Path, index: Path, asked: Path) -> list[dict[str, Any]]:
    """Picks of the untrained multi-step search: vectors of the question and of the passages taken (base: towers)."""
    run_ = open_run(folder).retriever
    assert run_.env.pool is not None
    env = replace(run_.env, pool=replace(run_.env.pool, base="towers"))
    fresh = with_fresh_params(replace(run_, env=env), jax.random.key(0))
    corpus = load_index(index)
    task = corpus_pool(corpus, str(index), [str(asked)])
    assert task.pool is not None
    picks = np.asarray(make_pool_bank(fresh, task.pool).play(list(map(str, task.questions)), max(KS)).actions)
    contexts = task.contexts(np.arange(len(task)), np.random.default_rng(0))
    return [
        {"method": "untrained", "id": name, "gold": gold[gold >= 0].tolist(), "picks": row.tolist()}
        for name, gold, row in zip(task.query_ids, contexts.chunks, picks, strict=True)
    ]


def run_labels(out: Path, data: Path, numbers: Sequence[int], seeds: Sequence[int]) -> None:
    """Trains on labelled questions to one pool, which is embedded once, and scores each run on the dev passages."""
    rows = [line for name in ("train", "train_more") for line in _lines(data / "hotpotqa" / f"{name}.jsonl.gz")]
    path = out / "hotpot_labelled.jsonl"
    path.write_text("".join(rows[: max(numbers)]))
    task = multihop_pool([("hotpot", str(path))])
    for seed in seeds:
        for number in numbers:
            for start in ("untrained", "learned"):
                told, folder = RESULTS / f"labels_{start}_{number}_{seed}.json", out / f"run_{start}_{number}_{seed}"
                if told.exists():
                    continue
                own = ["corpus_latent.yaml", f"seed={seed}", f"data.paths=[hotpot:{path}]"]
                if start == "learned":
                    own = ["learn_latent.yaml", *own[1:], "dev.margin=0", f"init={out / f'run_hotpot_{seed}'}"]
                config = load_config(RunConfig, CONFIGS / own[0], own[1:])
                if task.pool is not None and task.pool.vectors is None:
                    task = replace(task, pool=replace(task.pool, vectors=_vectors(config, task)))
                few, dev = split_pool(subset(task, np.arange(number)), config)
                train(config, few, folder, dev=dev)
                asked, index = str(out / "hotpot.jsonl"), str(out / "hotpot.index")
                pooled = PooledRequest(str(folder), "jsonl", asked, index, methods=("trained",), ks=KS)
                found, kept = evaluate_pool(pooled), {}
                kept["questions"] = _kept(found.questions)
                if start == "untrained" and number == max(numbers):  # Q of the other runs is no return
                    beams = evaluate_pool(replace(pooled, ks=BEAM_KS, beam_widths=BEAMS))
                    kept["beams"] = _kept(beams.questions, "beam_width")
                about = {"start": start, "labelled": number, "pool": len(task.texts), "seed": seed, **machine()}
                told.write_text(json.dumps({"about": about, **kept}) + "\n")
                print(start, number, seed, [(row["k"], round(row["all_gold"], 3)) for row in found.rows], flush=True)


def links(out: Path) -> None:
    """Measures how often a title or a rare name joins the two places of a question, so that a run can follow it."""
    rows = []
    for name in (*SETS, *OWN):
        index = str(out / f"{name}.index")
        task = corpus_pool(load_index(index), index, [str(out / f"{name}.jsonl")])
        assert task.pool is not None and task.pool.vectors is not None
        table = PoolReader(task.pool, NUM_LINKS, 1).table(task.pool.vectors)
        found = task.contexts(np.arange(len(task)), np.random.default_rng(0)).chunks
        pairs = [sorted({*row[row >= 0].tolist()}) for row in found]
        pairs = [pair for pair in pairs if len(pair) == 2]
        title, rare = (
            np.array([b in joined[a] or a in joined[b] for a, b in pairs])
            for joined in map(np.asarray, (table.texts.named, table.kin))
        )
        rows.append([name, float(title.mean()), float(rare.mean()), float((title | rare).mean()), len(pairs)])
    (RESULTS / "links.json").write_text(json.dumps({"about": machine(), "rows": rows}) + "\n")


def write_links() -> str:
    """Table of `links`."""
    path = RESULTS / "links.json"
    if not path.exists():
        return ""
    rows = [[name, *map(share, shares), str(number)] for name, *shares, number in json.loads(path.read_text())["rows"]]
    heads = ["folder", "one names the other's title", "they share a rare name", "either", "two-place questions"]
    return "## Two places that a name joins\n\n" + _LINKS + "\n\n" + "\n".join(grid(heads, rows))


_LINKS = """Share of the two-place questions whose places a title or a rare name joins (`links`). `learn` makes its
bridges, chains and questions about a shared name from such pairs of passages."""


def _kept(questions: Sequence[Mapping[str, Any]], *more: str) -> list[dict[str, Any]]:
    return [{key: row[key] for key in ("method", "id", "gold", "picks", *more)} for row in questions]


def _vectors(config: RunConfig, task: Task) -> np.ndarray:
    _, rows, _ = new_retriever(config.model, config.env, task.texts, jax.random.key(0), questions=task.questions)
    assert isinstance(rows, VectorRows)
    return np.asarray(rows.vectors)


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt") as file:
        return list(file)


def write_labels() -> str:
    """Table and plot of `run_labels`: all gold among 4 by the number of labelled questions."""
    found: dict[tuple[str, int], list[np.ndarray]] = {}
    abouts = []
    for path in sorted(RESULTS.glob("labels_*.json")):
        one = json.loads(path.read_text())
        abouts.append(one["about"])
        key = one["about"]["start"], one["about"]["labelled"]
        found.setdefault(key, []).append(_found(one, "trained")[:, KS.index(4)])
    if not found:
        return ""
    files = _files("hotpot")
    found["untrained", 0] = [_found(_with_baselines(files), "untrained")[:, KS.index(4)]]
    found["learned", 0] = [_found(one, "trained")[:, KS.index(4)] for one in files]
    numbers, rows = sorted({number for _, number in found}), []
    for number in numbers:
        cells = [found.get((start, number), []) for start in ("untrained", "learned")]
        each = [interval(over_seeds(list(map(mean_interval, own)))) if own else "" for own in cells]
        gain = paired_difference(*(np.mean(own, axis=0) for own in reversed(cells))) if all(cells) else None
        test = (
            ["", ""]
            if gain is None
            else [f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]", f"{gain.p_value:.4f}"]
        )
        rows.append([f"{number:,}", *each, *test, ", ".join(dict.fromkeys(str(len(own)) for own in cells))])
    figure = new_figure(5, 3.2)
    axes = figure.subplots()
    for start, told in (("untrained", "labels alone"), ("learned", "`learn` first")):
        means = [float(np.mean(found[start, number])) if (start, number) in found else np.nan for number in numbers]
        axes.plot(range(len(numbers)), means, marker="o", label=told)
    axes.set_xticks(range(len(numbers)), [f"{number:,}" for number in numbers])
    dress(axes, "HotpotQA dev passages, pooled", "labelled questions", "all gold among 4")
    axes.legend()
    write_png(RESULTS / "labels.png", figure)
    heads = ["labelled", "labels alone", "`learn` first", "difference", "p", "seeds"]
    pools = {one["labelled"]: one.get("pool") for one in abouts}
    text = "All gold among 4 of the 246 dev questions; passages in the pool of training: "
    text += ", ".join(f"{number:,}: {size:,}" for number, size in sorted(pools.items())) + ". p is not corrected.\n\n"
    return (
        "## With labelled questions\n\n" + text + "\n".join(grid(heads, rows)) + "\n\n![the same as a plot](labels.png)"
    )


def write_beams() -> str:
    """Table of beams over the pool, against the greedy search of the same run."""
    rows = []
    for path in sorted(RESULTS.glob("labels_untrained_*.json")):
        one = json.loads(path.read_text())
        for k in BEAM_KS if "beams" in one else ():
            greedy, *wider = (
                np.array([
                    float(set(row["gold"]) <= set(row["picks"][:k]))
                    for row in one["beams"]
                    if row["beam_width"] == width and (width == 1 or len(row["picks"]) == k)
                ])
                for width in BEAMS
            )  # fmt: skip
            run_ = f"{one['about']['labelled']:,}", str(one["about"]["seed"])
            rows.append([*run_, str(k), "1", interval(mean_interval(greedy)), "", "", "", str(len(greedy))])
            for width, found in zip(BEAMS[1:], wider, strict=True):
                own = paired_difference(found, greedy)
                told = tested(own.mean, own.low, own.high, own.p_value, own.n)
                rows.append([*run_, str(k), str(width), interval(mean_interval(found)), *told])
    if not rows:
        return ""
    heads = ["labelled", "seed", "picks", "beams", "all gold", "against one", "95% interval", "p", "n"]
    told = "Runs with labels alone, searched by beams (`qrag eval --beam_width`). p is not corrected."
    return f"## Beams\n\n{told}\n\n" + "\n".join(grid(heads, rows))


def write_table() -> None:
    """The page of all results."""
    table, tests, abouts, by_places = [], [], [], []
    for name in (*SETS, *OWN):
        files = _files(name)
        if not files:
            continue
        abouts += [one["about"] for one in files]
        columns = {"**learned**": [_found(one, "trained") for one in files]}
        columns |= {method: [_found(_with_baselines(files), method)] for method in BASELINES}
        asked = _files(f"asked_{name}")
        abouts += [one["about"] for one in asked]
        if asked:
            columns[ASKED] = [_found(one, "trained") for one in asked]
        if name in SETS:
            kept = json.loads((LABELLED / f"notes_{name}.json").read_text())
            places = [kept["ks"].index(k) if k in kept["ks"] else None for k in KS]
            own = np.array(kept["all_gold"], float)
            columns["notes best_of+bm25"] = [
                np.stack([own[:, p] if p is not None else own[:, 0] * np.nan for p in places], 1)
            ]
            labelled = [json.loads((LABELLED / f"pool_{seed}_{name}.json").read_text()) for seed in range(3)]
            columns["trained with labels"] = [_found(one, "trained") for one in labelled]
        for method, scores in columns.items():
            each = [[one[:, i] for one in scores if not np.isnan(one[:, i]).any()] for i in range(len(KS))]
            cells = [interval(over_seeds([mean_interval(one) for one in own])) if own else "" for own in each]
            table.append([name, method, *cells, str(len(scores[0])), str(len(scores))])
            if method not in ("**learned**", ASKED):
                mine = np.mean([one[:, KS.index(4)] for one in columns["**learned**"]], axis=0)
                tests.append(
                    (name, method, paired_difference(mine, np.mean([one[:, KS.index(4)] for one in scores], 0)))
                )
        if name in OWN:
            by_places += _by_places(name, {"learned": files, ASKED: asked, "hybrid": [_with_baselines(files)]})
    corrected = holm_p_values([one.p_value for *_, one in tests])
    told = (__doc__ or "").split("\n\n", 1)
    parts = ["# " + told[0].rstrip("."), told[1], _READING]
    heads = ["folder", "method", *(f"all gold at {k}" for k in KS), "questions", "seeds"]
    parts.append("\n".join(grid(heads, table)))
    parts.append("## By the number of places\n\nQuestions with all gold among the first k, mean of the seeds.")
    parts.append("\n".join(grid(["folder", "places", "method", *(f"at {k}" for k in KS), "of"], by_places)))
    rows = [
        [name, method, *tested(one.mean, one.low, one.high, p, one.n)]
        for (name, method, one), p in zip(tests, corrected, strict=True)
    ]
    parts.append("## Paired tests, all gold at 4\n\nMean of the learned seeds minus the method; p corrected (Holm).")
    parts.append("\n".join(grid(["folder", "against", "difference", "95% interval", "p (Holm)", "n"], rows)))
    parts += filter(None, [write_links(), write_labels(), write_beams()])
    parts.append("## Runs\n\n" + "\n".join(map(_about, abouts)))
    (RESULTS / "README.md").write_text("\n\n".join(parts) + "\n")


def _files(name: str) -> list[dict[str, Any]]:
    """The kept runs of a folder (`asked_` before it: of a language model too), by seed."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{name}_[0-9].json"))]


def _with_baselines(files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The run that was scored beside the baselines."""
    return next(one for one in files if any(row["method"] == "untrained" for row in one["questions"]))


def _about(one: dict[str, Any]) -> str:
    held_out = ", ".join(f"{row['method']} {share(row['all_gold'])}" for row in one["held_out"])
    name = one["folder"] + (f", with questions of {one['llm']}" if one.get("llm") else "")
    return (
        f"- {name}, seed {one['seed']}: {one['num_chunks']:,} chunks, questions {one['kinds']}, update "
        f"{one['update']}, held out: {held_out}; {place(one)}, commit {one['commit']}"
    )


_READING = """Intervals are 95%, by bootstrap over questions; of several seeds for other questions and other seeds.
`untrained` is the multi-step search by vectors before any training (configs/qrag/corpus_latent.yaml), `hybrid` is plain
search, `trained with labels` the three runs of benchmarks/qrag/results/corpus on the train questions of all three sets.
An update of 0 is plain search itself: `qrag learn` found nothing better on the made questions that it held out.

At commit 6ded3fdb every word with hyphens in at most three texts counted as an identifier. Later only rare names do
(benchmarks/search/results/words.md), and plain search finds .598 of the questions of hotpot among 4 in place of .606;
its other numbers at 4 are the same."""


def _found(one: dict[str, Any], method: str) -> np.ndarray:
    """float [questions, ks]: 1 where all gold is among the first k; NaN where fewer picks were kept."""
    rows = [row for row in one["questions"] if row["method"] == method]
    most = min(len(row["picks"]) for row in rows)
    found = [[set(row["gold"]) <= set(row["picks"][:k]) if k <= most else np.nan for k in KS] for row in rows]
    return np.array(found, float)


def _by_places(name: str, methods: Mapping[str, Sequence[dict[str, Any]]]) -> list[list[str]]:
    asked = [json.loads(line) for line in (QUESTIONS / f"{name}.jsonl").read_text().splitlines()]
    places, rows = np.array([one["places"] for one in asked]), []
    for number in (1, 2):
        for method, some in methods.items():
            if some:
                key = "hybrid" if method == "hybrid" else "trained"
                sums = np.mean([_found(one, key) for one in some], axis=0)[places == number].sum(axis=0)
                rows.append([name, str(number), method, *(f"{x:.1f}" for x in sums), str((places == number).sum())])
    return rows


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("stage", choices=("folders", "run", "labels", "links", "table"))
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--labelled", type=int, nargs="*", default=[100, 500, 1794])
    parser.add_argument("--only", nargs="*", choices=(*SETS, *OWN), default=[*SETS, *OWN])
    parser.add_argument("--llm_model", help="a language model that writes questions too")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if args.stage == "folders":
        write_folders(*args.paths)
    elif args.stage == "run":
        run(args.paths[0], args.only, args.seeds, args.llm_model)
    elif args.stage == "labels":
        run_labels(args.paths[0], args.paths[1], args.labelled, args.seeds)
    elif args.stage == "links":
        links(args.paths[0])
    write_table()


if __name__ == "__main__":
    main()
