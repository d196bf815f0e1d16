"""What an index of levels saves: one paragraph of 500 documents changed, and a build that is killed at 5 random places.

    python benchmarks/index_levels.py DATA [--num_documents 500] [--num_sentences 8]     # about 10 minutes on 2 cores

DATA has `paragraphs/docs.jsonl.gz`, documents {sentences, is_para_end}: of each the first sentences, in their
paragraphs, are a file. An index of them is built by MiniLM for each way of parents; then one sentence of one file is
replaced, and the index is brought up to date. What is embedded again must be the leaf of that sentence, and where
parents are read also those around it. For one way the build, a process of its own, is killed when so many documents are
written, drawn at random, begun again, and so on; it must come to the ranking of one that was not killed: the same nodes
in the same order for all questions at every range of levels, but for those whose scores are nearly equal: a build that
goes on embeds what is left in other batches, whose sums differ in their last bits.
"""

import argparse
import gzip
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import chdir, closing, suppress
from pathlib import Path

import numpy as np
from embed import RESULTS, about, about_lines, write

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.tree.level_ranges import all_ranges
from qrag_jax.index import build_index, index_method, index_settings, load_level_index, read_settings
from qrag_jax.names import ParentsName
from qrag_jax.search import Ranked
from qrag_jax.search.corpus import embed_texts

WAYS: tuple[ParentsName, ...] = ("best_child", "mean", "windows")
KILLED: ParentsName = "windows"  # which keeps most, and embeds most
CHUNKING = ChunkConfig("levels", max_tokens=200)
NUM_KILLS, NUM_QUESTIONS = 5, 20
EDITED = "One sentence was edited here."
TIE = 1e-6  # of two scores that count as equal: batches of other sizes round otherwise
SEED = 0


def write_files(data: Path, num_documents: int, num_sentences: int) -> list[str]:
    """Files of the first sentences of documents in the folder `texts`; gives sentences to ask with."""
    Path("texts").mkdir()
    said = []
    with gzip.open(data / "paragraphs" / "docs.jsonl.gz", "rt") as stream:
        for number, line in enumerate(itertools.islice(stream, num_documents)):
            row = json.loads(line)
            ends = zip(row["sentences"][:num_sentences], row["is_para_end"], strict=False)
            text = "".join(sentence + ("\n\n" if end else " ") for sentence, end in ends)
            Path(f"texts/{number:03}.txt").write_text(text)
            said.append(row["sentences"][0])
    return said


def rankings(index: str, questions: list[str]) -> list[Ranked]:
    """The nodes of all questions at every range, in order, with their scores."""
    method = index_method(read_settings(index))
    levels = load_level_index(index, method)
    assert method.embed is not None
    vectors = embed_texts(method.embed, questions)
    return [levels.rank("", vector, part) for vector in vectors for part in all_ranges(levels.names)]


def is_same_but_for_ties(one: Ranked, other: Ranked) -> bool:
    """Whether two rankings have the same nodes, and at every rank the same score to `TIE`."""
    nodes_agree = np.array_equal(np.sort(one.ids), np.sort(other.ids))
    return nodes_agree and float(np.abs(one.scores - other.scores).max()) <= TIE


def num_written(index: str) -> int:
    """Documents that an index has by now."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{index}/catalogue.sqlite?mode=ro", uri=True)) as file:
        return file.execute("SELECT count(*) FROM documents").fetchone()[0]
    return 0


def edit_one(way: ParentsName, place: int) -> dict:
    """Builds an index, changes a sentence of a file, and brings the index up to date."""
    start = time.perf_counter()
    built = build_index(way, "texts", index_settings(chunking=CHUNKING, parents=way))
    seconds = time.perf_counter() - start
    path = Path(f"texts/{place:03}.txt")
    text = path.read_text()
    path.write_text(text.replace(text.split(". ")[1], EDITED.removesuffix("."), 1))
    start = time.perf_counter()
    done = build_index(way, "texts")
    again = time.perf_counter() - start
    levels = load_level_index(way, index_method(read_settings(way)))
    path.write_text(text)
    corpus = levels.corpus
    around = [node for node, said in enumerate(corpus.texts) if EDITED in said]
    size = sum(file.stat().st_size for file in Path(way).iterdir())
    return {
        "parents": way,
        "num_nodes": len(corpus),
        "num_leaves": len(corpus.leaves),
        "build_embedded": built.num_embedded,
        "build_seconds": seconds,
        "num_bytes": size,
        "changed_nodes": len(around),
        "embedded_again": done.num_embedded,
        "num_same": done.num_same,
        "update_seconds": again,
    }


def kill_and_go_on(num_documents: int, questions: list[str]) -> dict:
    """Builds that are killed, and the one that comes to the end."""
    rng, written = random.Random(SEED), []
    command = [sys.executable, "-m", "qrag_jax.cli.main", "index", "build", "killed", "texts", "--parents", KILLED]
    for place in sorted(rng.sample(range(1, num_documents - 16), NUM_KILLS)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while num_written("killed") < place and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        written.append(num_written("killed"))
    last = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE)
    same = json.loads(last.stdout)["num_same"]
    build_index("whole", "texts", index_settings(chunking=CHUNKING, parents=KILLED))
    pairs = list(zip(*(rankings(index, questions) for index in ("killed", "whole")), strict=True))
    equal = [np.array_equal(one.ids, other.ids) for one, other in pairs]
    tied = [not same and is_same_but_for_ties(*pair) for pair, same in zip(pairs, equal, strict=True)]
    return {
        "parents": KILLED,
        "written": written,
        "num_same": same,
        "num_rankings": len(pairs),
        "num_equal": sum(equal),
        "num_tied": sum(tied),
        "tie": TIE,
    }


def format_report(result: dict) -> str:
    """Tables of the results."""
    lines = ["# An index of levels: what is embedded again, and builds that are killed", ""]
    lines += [f"`{result['command']}`, {result['seconds']:.0f} s, seed {SEED}.", "", *about_lines(result["about"])]
    lines += [
        f"{result['num_documents']} files of {result['num_sentences']} sentences; a sentence of one file is replaced. "
        "Seconds are of a machine that had other work.",
        "",
        "| parents | nodes | leaves | embedded by the build | seconds | MB | nodes that changed | embedded again | "
        "documents as they were | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['parents']} | {row['num_nodes']:,} | {row['num_leaves']:,} | {row['build_embedded']:,} | "
            f"{row['build_seconds']:.1f} | {row['num_bytes'] / 1e6:.1f} | {row['changed_nodes']} | "
            f"{row['embedded_again']} | {row['num_same']} | {row['update_seconds']:.1f} |"
        )
    killed = result["killed"]
    places = ", ".join(map(str, killed["written"]))
    lines += [
        "",
        f"Parents by {killed['parents']}, build killed when {places} documents were written, then gone on with, which "
        f"found {killed['num_same']} of them as they were: of {killed['num_rankings']:,} rankings, those of "
        f"{NUM_QUESTIONS} questions at every range, {killed['num_equal']:,} have the nodes of a build that was not "
        f"killed in the same order, and {killed['num_tied']:,} but for nodes whose scores are equal to {TIE:g}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--num_documents", type=int, default=500)
    parser.add_argument("--num_sentences", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    out, data = args.out.resolve(), args.data.resolve()
    facts, start = about(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        said = write_files(data, args.num_documents, args.num_sentences)
        questions = random.Random(SEED).sample(said, min(NUM_QUESTIONS, len(said)))
        place = random.Random(SEED).randrange(args.num_documents)
        rows = [edit_one(way, place) for way in WAYS]
        killed = kill_and_go_on(args.num_documents, questions)
    sizes = {"num_documents": args.num_documents, "num_sentences": args.num_sentences}
    command = "python benchmarks/index_levels.py DATA"
    result = {"command": command, "about": facts, "seconds": time.perf_counter() - start, "rows": rows, **sizes}
    result["killed"] = killed
    write(out, "index_levels", result, format_report(result))


if __name__ == "__main__":
    main()
