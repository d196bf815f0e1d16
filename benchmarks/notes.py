"""Do notes bridge chunks, and do they harm where nothing has to be bridged?

    python benchmarks/notes.py DATA [--smoke] [--only multihop|harm|stories|speed] [--out DIR]
    python benchmarks/notes.py table [--out DIR]          # the tables of benchmarks/results/notes.md from its rows

DATA holds hotpotqa/, 2wiki/ and musique/ (dev.jsonl.gz each), multihop_corpora/ (further distractors), babi/ (qa2 and
qa3_valid.txt.gz), novels/dev.jsonl.gz, squad/, chroma/ and scisumm/.

* multihop: mentions; all dev questions, pooled per set, alone and with the further distractors.
* stories: the scripted reader; 500 stories of qa2 and qa3 in both fillers, 3 seeds.
* harm: mentions, with names that texts introduce and without; the share of evidence sentences in the first chunks that
  1,000 tokens hold, paired to the same search without notes.
* speed: milliseconds of a question and bytes of vectors; 8 notes a chunk, random vectors; the question and what is
  inserted are embedded.

Rows, and paired differences (all gold at 4, bootstrap over questions), go to rows.json in DIR after every set, so that
what is done is kept: a set whose rows are there is not asked again. harm.json and speed.json likewise. Run it with the
GLIBC_TUNABLES of the Makefile.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from worlds import machine

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.chunking.mentions import MentionsConfig, mention_notes
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.eval.measures.aggregate import paired_difference
from qrag_jax.eval.notes.evidence import evidence_recall
from qrag_jax.eval.notes.scores import EVAL_MODES, NoteScores, rank_mode, score_notes
from qrag_jax.eval.notes.tasks import NOTE_READERS, NoteTask, babi_note_task, multihop_note_task
from qrag_jax.eval.study.config import TaskConfig
from qrag_jax.eval.study.tasks import load_task
from qrag_jax.eval.tables import align, share
from qrag_jax.files.whole_file import write_json
from qrag_jax.models.encoder.embedder import TextEmbedder, make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.retrieval.corpus.corpus import Corpus, MadeBy
from qrag_jax.retrieval.index.notes import NotedCorpus, NoteSearch
from qrag_jax.types import CountTokens, Document, Note
from qrag_jax.unit_rows import unit_rows

HARM = {"squad": 500, "chroma": None, "scisumm": None}  # questions; None: all
HARM_PAIRS = {"best_of": "none", "insert": "none", "best_of+bm25": "none+bm25"}
HARM_READERS = {"titles and headings": MentionsConfig(), "introduced names too": MentionsConfig(most_introduced=5)}
HARM_TOKENS = 1000
NUM_NOTES = (1_000, 100_000)
SPEED_MODES = ("none", "best_of", "best_of_uncapped", "insert")
SPEED_QUESTIONS, SPEED_TOP_K = 30, 10
RESULTS = Path(__file__).parent / "results" / "notes"
SETS = {
    "hotpot": ("hotpotqa", "hotpotqa_train_corpus.json.gz"),
    "2wiki": ("2wiki", "2wikimultihopqa_corpus.json.gz"),
    "musique": ("musique", "musique_train_corpus.json.gz"),
}
KS = (2, 4, 5, 10)
K = 4  # of the paired differences
STORY_MODES = ("none", "best_of", "insert", "all", "random", "walk", "bm25", "best_of+bm25")
SEEDS = (0, 1, 2)
NUM_STORIES = 500
SMOKE_QUESTIONS, SMOKE_STORIES = 6, 3
# Beside `none`: what a mode must beat.
AGAINST = {"insert": ("none", "random"), "best_of": ("none", "random")}

Make = Callable[[CountTokens], NoteTask]


def multihop_tasks(data: Path, smoke: bool) -> Iterator[tuple[str, str, int, Sequence[str], Make]]:
    """(key, reader, seed, modes, maker) of each pool of paragraphs, alone and with further distractors."""
    few = SMOKE_QUESTIONS if smoke else None
    for kind, (folder, corpus) in SETS.items():
        for more in (None, data / "multihop_corpora" / corpus):
            if smoke and more:
                continue
            source = data / folder / "dev.jsonl.gz"
            make = partial(multihop_note_task, kind, source, distractors=more, num_questions=few)
            yield f"{kind}{' more' if more else ''}", "mentions", 0, EVAL_MODES, make


def story_tasks(data: Path, smoke: bool) -> Iterator[tuple[str, str, int, Sequence[str], Make]]:
    """The same of hidden stories, by set, filler and seed."""
    few, seeds = (SMOKE_STORIES, SEEDS[:1]) if smoke else (NUM_STORIES, SEEDS)
    for name in ("qa2_valid", "qa3_valid"):
        for filler in ("stories", str(data / "novels" / "dev.jsonl.gz")):
            for seed in seeds:
                source = data / "babi" / f"{name}.txt.gz"
                make = partial(babi_note_task, source, filler, num_questions=few, seed=seed)
                kind = filler if filler == "stories" else "novels"
                yield f"{name} {kind} {seed}", "scripted", seed, STORY_MODES, make


def differences(scores: NoteScores) -> list[dict[str, Any]]:
    """Paired to `none`, and of what selects notes also to random ones."""
    found = []
    for mode in scores.modes:
        for other in AGAINST.get(mode, ("none",)):
            if mode != other and K in scores.ks:
                one = scores.difference(mode, other, K)
                found.append({"mode": mode, "other": other, "k": K, **asdict(one)})
    return found


def run(data: Path, out: Path, only: str | None, smoke: bool) -> None:
    embed = make_embedder(load_encoder("minilm"))
    if only in (None, "harm"):
        run_harm(data, out, embed, smoke)
    done: dict[str, Any] = read(out / "rows.json")
    if only in (None, "speed"):
        run_speed(out, embed, smoke)
    tasks = [task for kind, of in (("multihop", multihop_tasks), ("stories", story_tasks)) if only in (None, kind)
             for task in of(data, smoke)]  # fmt: skip
    for key, reader, seed, modes, make in tasks:
        if key in done:
            continue
        task = make(embed.count_tokens)
        scores = score_notes(
            task.name,
            task.pools,
            NOTE_READERS[reader],
            embed,
            embed.count_tokens,
            reader_name=reader,
            modes=modes,
            ks=KS,
            seed=seed,
        )
        rows = [asdict(row) for row in scores.rows()]
        done[key] = {"rows": rows, "differences": differences(scores), "left_out": task.num_left_out, **machine()}
        print(key, *(f"{r['mode']} {share(r['all_gold'], 2)}" for r in rows if r["k"] == K), sep="; ", flush=True)
        if not smoke:
            write_json(out / "rows.json", done)


def run_harm(data: Path, out: Path, embed: TextEmbedder, smoke: bool) -> None:
    done = read(out / "harm.json")
    modes = [mode for pair in HARM_PAIRS.items() for mode in pair]
    for name, num_questions in HARM.items():
        small = {"num_documents": 2, "num_questions": 4} if smoke else {"num_questions": num_questions}
        task = load_task(name, TaskConfig(kind=name, path=name, **small), str(data), 0, split_sentences)
        for names, config in HARM_READERS.items():
            key = f"{name}, {names}"
            if key in done:
                continue
            recall = evidence_recall(
                task,
                make_chunker(ChunkConfig("headings", max_tokens=200), embed.count_tokens),
                partial(mention_notes, config=config),
                embed,
                embed.count_tokens,
                modes=list(dict.fromkeys(modes)),
                num_tokens=HARM_TOKENS,
            )
            done[key] = {"n": len(task.questions), "recall": {mode: float(x.mean()) for mode, x in recall.items()}}
            done[key]["differences"] = [
                {"mode": mode, "other": other, **asdict(paired_difference(recall[mode], recall[other]))}
                for mode, other in HARM_PAIRS.items()
            ]
            print(
                key,
                *(f"{d['mode']} {share(d['mean'], 3, '+')}" for d in done[key]["differences"]),
                sep="; ",
                flush=True,
            )
            if not smoke:
                write_json(out / "harm.json", done | {"machine": machine()})


def harm_table(found: dict[str, Any]) -> list[str]:
    cells = [("set and names", "n", *(f"{mode} minus {other}" for mode, other in HARM_PAIRS.items()))]
    for key, value in found.items():
        if key != "machine":
            shown = (f"{share(d['mean'], 3, '+')} [{share(d['low'], 3, '+')}, {share(d['high'], 3, '+')}]"
                     for d in value["differences"])  # fmt: skip
            cells.append((key, str(value["n"]), *shown))
    return align(cells, [False, *[True] * (len(cells[0]) - 1)], markdown=True)


def random_notes(num_notes: int, dim: int, embed: TextEmbedder) -> NotedCorpus:
    """A corpus of a sentence a document, an eighth as many chunks as notes, with random vectors."""
    rng = np.random.default_rng(0)
    texts = [f"The keeper of house {number} has the key of the next one." for number in range(num_notes // 8)]
    documents = tuple(Document(str(number), text) for number, text in enumerate(texts))
    chunks = tuple(make_chunk(document, [(0, len(document.text))], 1, lambda text: 14) for document in documents)
    asking, answering = rng.integers(len(texts), size=(2, num_notes))
    notes = tuple(
        Note(chunks[a].id, chunks[b].id, texts[a], (0, len(texts[a])), (0, len(texts[b])), texts[b], "mentions")
        for a, b in zip(asking.tolist(), answering.tolist(), strict=True)
    )
    vectors, told = (unit_rows(rng.normal(size=(n, dim)).astype(np.float32)) for n in (len(texts), num_notes))
    made_by = MadeBy(fingerprint=embed.fingerprint)
    corpus = Corpus(documents, chunks, vectors, made_by)
    return NotedCorpus(corpus, notes, told, told, np.full(num_notes, 14))


def run_speed(out: Path, embed: TextEmbedder, smoke: bool) -> None:
    dim = embed(["key"]).shape[1]
    found = []
    for num_notes in NUM_NOTES[:1] if smoke else NUM_NOTES:
        noted = random_notes(num_notes, dim, embed)
        for mode in SPEED_MODES:
            seconds = []
            for number in range(SPEED_QUESTIONS + 3):  # three to compile and to fill what is kept
                start = time.perf_counter()
                rank_mode(f"Who has the key of house {number}?", noted, embed, mode, NoteSearch(), 0, SPEED_TOP_K)
                seconds.append(time.perf_counter() - start)
            held = noted.corpus.unit_vectors.nbytes + (noted.vectors.nbytes if mode != "none" else 0)
            row = {"notes": num_notes, "chunks": len(noted.corpus), "mode": mode, "bytes": held}
            found.append(row | {"ms": 1000 * float(np.median(seconds[3:]))})
            print(", ".join(f"{name} {value}" for name, value in found[-1].items()), flush=True)
    if not smoke:
        write_json(out / "speed.json", {"rows": found, "machine": machine()})


def speed_table(found: dict[str, Any]) -> list[str]:
    cells = [("notes", "chunks", "mode", "ms a question", "MB of vectors")]
    for row in found["rows"]:
        cells.append(
            (f"{row['notes']:,}", f"{row['chunks']:,}", row["mode"], f"{row['ms']:.1f}", f"{row['bytes'] / 1e6:.1f}")
        )
    return align(cells, [True, True, False, True, True], markdown=True)


def table(found: dict[str, Any]) -> str:
    """All gold at each k, and the paired difference at 4; stories as the mean over their seeds, and its range."""
    lines = []
    for title, keys in (("Paragraphs", of_paragraphs(found)), ("Stories", of_stories(found))):
        if not keys:
            continue
        lines += [f"## {title}", ""]
        for name, runs in keys.items():
            lines += [f"### {name}", "", *one_table(runs), ""]
    return "\n".join(lines)


def of_paragraphs(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {key: [value] for key, value in found.items() if not key.startswith("qa")}


def of_stories(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for key, value in found.items():
        if key.startswith("qa"):
            grouped.setdefault(key.rsplit(" ", 1)[0], []).append(value)
    return grouped


def one_table(runs: Sequence[dict[str, Any]]) -> list[str]:
    first = runs[0]["rows"]
    cells = [("mode", *(f"all gold at {k}" for k in KS), "recall at 4", f"minus none at {K}", "embedded", "ms")]
    for mode in dict.fromkeys(row["mode"] for row in first):
        own = [[row for row in one["rows"] if row["mode"] == mode] for one in runs]
        values = [spread([rows[column]["all_gold"] for rows in own]) for column in range(len(KS))]
        recall = spread([rows[KS.index(K)]["recall"] for rows in own])
        cost = [f"{np.mean([r[0][name] for r in own]) * scale:.1f}" for name, scale in COSTS]
        cells.append((mode, *values, recall, paired(runs, mode, "none"), *cost))
    facts = first[0]
    about = f"n {facts['n']}, {facts['n_chunks']:,} chunks, {facts['n_notes']:,} notes"
    random = [f"{mode} minus random at {K}: {paired(runs, mode, 'random')}" for mode in ("insert", "best_of")]
    return [*align(cells, [False, *[True] * (len(cells[0]) - 1)], markdown=True), "", "; ".join([about, *random])]


COSTS = (("embedded_at_query", 1.0), ("seconds", 1000.0))


def paired(runs: Sequence[dict[str, Any]], mode: str, other: str) -> str:
    """The difference and its interval, of every seed."""
    own = [d for one in runs for d in one["differences"] if (d["mode"], d["other"]) == (mode, other)]
    return "; ".join(f"{share(d['mean'], 2, '+')} [{share(d['low'], 2, '+')}, {share(d['high'], 2, '+')}]" for d in own)


def spread(values: Sequence[float]) -> str:
    shown = share(float(np.mean(values)), 2)
    return shown if len(values) == 1 else f"{shown} [{share(min(values), 2)}, {share(max(values), 2)}]"


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="DATA, or table")
    parser.add_argument("--only", choices=("multihop", "harm", "stories", "speed"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="a few questions of each set, printed and not kept")
    args = parser.parse_args()
    if args.data == "table":
        print(table(read(args.out / "rows.json")))
        if (args.out / "harm.json").exists():
            print("## Harm", "", *harm_table(read(args.out / "harm.json")), "", sep="\n")
        if (args.out / "speed.json").exists():
            print("## Speed", "", *speed_table(read(args.out / "speed.json")), sep="\n")
        return
    run(Path(args.data), args.out, args.only, args.smoke)


if __name__ == "__main__":
    main()
