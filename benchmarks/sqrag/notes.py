"""Do notes bridge chunks, and do they harm where nothing has to be bridged?

    python -m benchmarks.sqrag.notes DATA [--smoke] [--only PART] [--stories N] [--out DIR]
    python -m benchmarks.sqrag.notes DATA --only runs --qrag_run NAME=RUN ... [--sets hotpot ...] [--questions N]
    python -m benchmarks.sqrag.notes table [--out DIR] > benchmarks/sqrag/results/notes.md

DATA holds hotpotqa/, 2wiki/ and musique/ (dev.jsonl.gz each), multihop_corpora/ (further distractors), babi/ (qa2 and
qa3_valid.txt.gz), novels/dev.jsonl.gz, squad/, chroma/ and scisumm/.

* multihop: mentions; all dev questions, pooled per set, alone and with the further distractors.
* stories: the scripted reader; --stories (500) stories of qa2 and qa3 in both fillers, 3 seeds; with other stories as
  filler also a reader that is wrong in a fifth of its answers, on the same stories.
* harm: mentions, with names that texts introduce and without; the share of evidence sentences in the first chunks that
  1,000 tokens hold, paired to the same search without notes.
* runs: Q-RAG runs beside none and best_of, on the same pools. They are trained on the three train sets mixed:
      qrag train --config_path configs/qrag/multihop_latent.yaml --out RUN env.links=false 'data.paths=[hotpot:F, ...]'
      qrag train --config_path configs/qrag/multihop_text.yaml --out RUN 'data.paths=[hotpot:FILE, ...]'
  A run with links compares all chunks that it picks from with each other: it picks from the 64 nearest.
* ceilings: adds to rows that are there the share of questions with at most k gold chunks; embeds nothing.
* speed: milliseconds of a question and bytes of vectors; 8 notes a chunk, random vectors; the question and what is
  inserted are embedded.

Rows, and paired differences (all gold at 4, bootstrap over questions), go to rows.json in DIR after every set, so that
what is done is kept: a set whose rows are there is not asked again, unless of fewer stories. harm.json (recall of each
question), runs.json and speed.json likewise. Run it with the GLIBC_TUNABLES of the Makefile.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import arguments, machine, minilm, read_json, write_json
from benchmarks.sqrag import notes_table
from benchmarks.sqrag.notes_runs import evidence_recall, nearest_chunks, score_run
from benchmarks.sqrag.notes_table import HARM_PAIRS, KS, K
from qrag_jax.annotate.mentions import MentionsConfig, mention_notes
from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.stories.story_notes import read_stories
from qrag_jax.eval.notes.note_scores import NoteScores, gold_ceiling, known_vectors, rank_mode, score_notes
from qrag_jax.eval.notes.note_sets import MakeNoteTask, read_babi_task, read_multihop_task
from qrag_jax.eval.study.config import TaskConfig
from qrag_jax.eval.study.load_tasks import load_task
from qrag_jax.eval.tables import share
from qrag_jax.models.encoder.embedder import TextEmbedder
from qrag_jax.qrag.batching import MAX_LINKED
from qrag_jax.qrag.retriever import load_retriever
from qrag_jax.search.corpus import Corpus, MadeBy
from qrag_jax.search.note_search import NotedCorpus, NoteSearch
from qrag_jax.types import Document, Embed, Note
from qrag_jax.unit_rows import unit_rows

HARM = {"squad": 500, "chroma": None, "scisumm": None}  # questions; None: all
HARM_READERS = {"titles and headings": MentionsConfig(), "introduced names too": MentionsConfig(max_introduced=5)}
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
PASSAGE_MODES = ("none", "best_of", "best_of_uncapped", "walk", "bm25", "none+bm25", "best_of+bm25")
# What is embedded takes nearly all the time: of the sets alone, in tables of their own.
INSERTED_MODES = ("none", "best_of", "insert", "all", "random")
STORY_MODES = ("none", "best_of", "insert", "all", "random", "walk", "bm25", "best_of+bm25")
SEEDS = (0, 1, 2)
NUM_STORIES = 500
SMOKE_QUESTIONS, SMOKE_STORIES = 6, 3
# Beside `none`: what a mode must beat.
AGAINST = {"insert": ("none", "random"), "best_of": ("none", "random")}
WRONG = 0.2  # share of the answers of a reader that lies
WRONG_MODES = ("none", "best_of", "insert", "random")
RUN_PICKS = {"latent": max(KS), "text": 5}  # the states of text towers have 512 positions


class Part(NamedTuple):
    """A table: its key, what reads its files, who writes the notes, and how they are used."""

    key: str
    read: Callable[[], MakeNoteTask]
    modes: Sequence[str]
    reader: str = "mentions"
    seed: int = 0
    wrong_share: float = 0.0
    num_stories: int = 0  # that are asked for; rows of fewer are asked again


def passage_parts(data: Path, smoke: bool, num_questions: int | None = None) -> Iterator[Part]:
    """Each pool of paragraphs, alone and with further distractors, and what is inserted into the former."""
    few = SMOKE_QUESTIONS if smoke else num_questions
    for what, modes in (("", PASSAGE_MODES), (" more", PASSAGE_MODES), (" inserted", INSERTED_MODES)):
        for kind, (folder, corpus) in SETS.items():
            source = data / folder / "dev.jsonl.gz"
            more = data / "multihop_corpora" / corpus if what == " more" else None
            if not (smoke and more):
                read = partial(read_multihop_task, kind, source, distractors=more, num_questions=few)
                yield Part(kind + what, read, modes)


def story_parts(data: Path, num_stories: int, smoke: bool) -> Iterator[Part]:
    """Hidden stories by seed, set, filler and reader; seeds first, so that what is cut short is whole for some."""
    for seed in SEEDS[:1] if smoke else SEEDS:
        for name in ("qa2_valid", "qa3_valid"):
            for kind, filler in (("stories", "stories"), ("novels", str(data / "novels" / "dev.jsonl.gz"))):
                source = data / "babi" / f"{name}.txt.gz"
                read = partial(read_babi_task, source, filler, num_questions=num_stories, seed=seed)
                yield Part(f"{name} {kind} {seed}", read, STORY_MODES, "scripted", seed, 0.0, num_stories)
                if kind == "stories":
                    key = f"{name} {kind}, wrong {WRONG} {seed}"
                    yield Part(key, read, WRONG_MODES, "scripted", seed, WRONG, num_stories)


def differences(scores: NoteScores) -> list[dict[str, Any]]:
    """Paired to `none`, and of what selects notes also to random ones."""
    found = []
    for mode in scores.modes:
        for other in AGAINST.get(mode, ("none",)):
            if mode != other and other in scores.modes and K in scores.ks:
                one = scores.difference(mode, other, K)
                found.append({"mode": mode, "other": other, "k": K, **asdict(one)})
    return found


def run(data: Path, out: Path, embed: TextEmbedder, only: str | None, num_stories: int, smoke: bool) -> None:
    parts: list[Part] = []
    if only in (None, "multihop"):
        parts += passage_parts(data, smoke)
    if only in (None, "stories"):
        parts += story_parts(data, SMOKE_STORIES if smoke else num_stories, smoke)
    done: dict[str, Any] = read_json(out / "rows.json.gz")
    known = known_vectors(embed)  # a reader that lies reads the same stories
    for part in parts:
        if done.get(part.key, {}).get("num_stories", -1) < part.num_stories:
            done[part.key] = score_part(part, embed, known) | {"num_stories": part.num_stories}
            if not smoke:
                write_json(out / "rows.json.gz", done)
    if only in (None, "harm"):
        run_harm(data, out, embed, smoke)
    if only in (None, "speed"):
        run_speed(out, embed, smoke)


def score_part(part: Part, embed: TextEmbedder, known: Embed, runs: Mapping[str, Path] | None = None) -> dict[str, Any]:
    """The rows of a table, those of Q-RAG runs among them, and what was left out."""
    task = part.read()(embed.count_tokens)
    lying = partial(read_stories, wrong_share=part.wrong_share, seed=part.seed)
    readers = {"mentions": mention_notes, "scripted": lying}
    scores = score_notes(
        task.name,
        task.pools,
        readers[part.reader],
        embed,
        embed.count_tokens,
        reader_name=f"{part.reader}, wrong {part.wrong_share}" if part.wrong_share else part.reader,
        modes=part.modes,
        ks=KS,
        seed=part.seed,
        known=known,
    )
    for name, folder in (runs or {}).items():
        (pool,) = task.pools
        retriever = load_retriever(folder)
        among = nearest_chunks(pool, known, MAX_LINKED) if retriever.env.links else None
        found = score_run(pool, retriever, KS, RUN_PICKS[retriever.model.mode], among)
        scores = replace(scores, modes={**scores.modes, f"run {name}": found})
    rows = [asdict(row) for row in scores.rows()]
    print(part.key, *(f"{r['mode']} {share(r['all_gold'], 2)}" for r in rows if r["k"] == K), sep="; ", flush=True)
    told = {"set": task.about, "left_out": {"notes": dict(scores.left_out)}}
    return {"rows": rows, "differences": differences(scores), **told, **machine()}


def add_ceilings(data: Path, out: Path) -> None:
    """Gives rows that were written without it their `ceiling`, where their questions are all of a part."""
    files = {path: read_json(path) for path in (out / "rows.json.gz", out / "runs.json.gz")}
    for part in (*passage_parts(data, smoke=False), *story_parts(data, NUM_STORIES, smoke=False)):
        pools = part.read()(lambda text: 1).pools  # gold chunks, whatever their tokens
        num_gold = [len(asked.gold) for pool in pools for asked in pool.asked]
        rows = [
            row
            for done in files.values()
            for key, value in done.items()
            for row in value["rows"]
            if (key == part.key or key.startswith(f"{part.key}, ")) and row["n"] == len(num_gold)
        ]
        for row in rows:
            row["ceiling"] = gold_ceiling(num_gold, row["k"])
        print(part.key, *(f"{k} {share(gold_ceiling(num_gold, k))}" for k in KS), len(rows), sep="; ", flush=True)
    for path, done in files.items():
        write_json(path, done)


def run_runs(
    data: Path,
    out: Path,
    embed: TextEmbedder,
    runs: Mapping[str, Path],
    only: Sequence[str],
    few: int | None,
    smoke: bool,
) -> None:
    done = read_json(out / "runs.json.gz")
    for part in passage_parts(data, smoke, few):
        key = ", ".join([part.key, *runs, *([f"{few} questions"] if few else [])])
        if part.key in only and key not in done:
            done[key] = score_part(part._replace(modes=("none", "best_of")), embed, known_vectors(embed), runs)
            done[key]["trained"] = {name: trained(folder) for name, folder in runs.items()}
            if not smoke:
                write_json(out / "runs.json.gz", done)


def trained(folder: Path) -> str:
    """What a run is, in a line."""
    saved = load_checkpoint(folder, groups=())
    env, sets = saved.config["env"], [Path(str(path)).parent.name for path in saved.config["data"]["paths"]]
    of = f"of the {MAX_LINKED} nearest, with links" if env["links"] else "of all chunks, without links"
    updates = f"{saved.step} updates of {saved.config['data']['batch_size']} questions"
    return f"{saved.config['model']['mode']} towers, {updates}, train questions of {', '.join(sets)}; picks {of}"


def run_harm(data: Path, out: Path, embed: TextEmbedder, smoke: bool) -> None:
    done = read_json(out / "harm.json.gz")
    known = known_vectors(embed)  # both readers read the same chunks
    for name, num_questions in HARM.items():
        small = {"num_documents": 2, "num_questions": 4} if smoke else {"num_questions": num_questions}
        task = load_task(name, TaskConfig(kind=name, path=name, **small), str(data), 0, split_sentences)
        for names, config in HARM_READERS.items():
            key = f"{name}, {names}"
            if key in done:
                continue
            # What is inserted is embedded at every question: with the default reader alone.
            pairs = {
                mode: other for mode, other in HARM_PAIRS.items() if mode != "insert" or config == MentionsConfig()
            }
            recall = evidence_recall(
                task,
                make_chunker(ChunkConfig("headings", max_tokens=200), embed.count_tokens),
                partial(mention_notes, config=config),
                known,
                embed.count_tokens,
                modes=list(dict.fromkeys([*pairs, *pairs.values()])),
                num_tokens=HARM_TOKENS,
            )
            done[key] = {
                "documents": [question.relevant[0] for question in task.questions],
                "recall": {mode: values.tolist() for mode, values in recall.items()},
            }
            print(key, *(f"{mode} {share(float(x.mean()), 3)}" for mode, x in recall.items()), sep="; ", flush=True)
            if not smoke:
                write_json(out / "harm.json.gz", done | {"machine": machine()})


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
        write_json(out / "speed.json.gz", {"rows": found, "machine": machine()})


def main() -> None:
    parser = arguments(__doc__, smoke="a few questions of each set, printed and not kept")
    parser.add_argument("data", help="DATA, or table")
    parser.add_argument("--only", choices=("multihop", "harm", "stories", "speed", "runs", "ceilings"))
    parser.add_argument("--stories", type=int, default=NUM_STORIES, metavar="N", help="of each set, filler and seed")
    parser.add_argument("--sets", nargs="*", default=[*SETS], help="of runs: hotpot, `hotpot more`, ...")
    parser.add_argument("--questions", type=int, metavar="N", help="of runs: draw so many, with their paragraphs alone")
    parser.add_argument("--qrag_run", nargs="*", default=[], metavar="NAME=RUN", help="runs of `qrag train`")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.data == "table":
        print(
            notes_table.page(*(read_json(args.out / f"{name}.json.gz") for name in ("rows", "runs", "harm", "speed")))
        )
        return
    if (args.only == "runs") != bool(args.qrag_run):
        parser.error("--only runs and --qrag_run NAME=RUN go together")
    runs = {name: Path(folder) for name, _, folder in (given.partition("=") for given in args.qrag_run)}
    if args.only == "ceilings":
        add_ceilings(Path(args.data), args.out)
        return
    embed = minilm()
    if runs:
        run_runs(Path(args.data), args.out, embed, runs, args.sets, args.questions, args.smoke)
    else:
        run(Path(args.data), args.out, embed, args.only, args.stories, args.smoke)


if __name__ == "__main__":
    main()
