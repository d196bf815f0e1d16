"""Which sentence of what was found answers: by words, by vectors, or by both; how many to quote; is there an answer?

    nice python -m benchmarks.search.sentences COLLECTIONS SQUAD --cache FOLDER     # 20 minutes on 2 busy cores, then 2

COLLECTIONS holds a folder for every name of questions/collections.json, as own_documents.py takes it; SQUAD is the
folder of articles.jsonl.gz, of which every third article is taken, and 300 questions of these. What is a constant was
chosen on fastapi, handbook and prometheus; the other sets report.

The ten best passages by BM25 are ranked again by words and vectors, as hybrid search does it, and the first five are
read; so a few thousand passages have to be embedded and not 20,000. Where none of the five holds the proof, the passage
that does stands in the place of the fifth: search itself is not measured. A sentence is right where it and the proof
have half of the shorter one of both in common. Measures are shares of the questions:

* `passage`: the best sentence of the first passage that holds the proof is right;
* `first`, `three`: a right one is first, or among the first three, of the different sentences of all five.

A question about one collection that is asked of another one of the same side has no answer there.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.common import about, about_lines, arguments, grid, interval
from benchmarks.search.own_documents import SUFFIXES, read_questions
from benchmarks.smartchunk.parents_sets import Kept
from qrag_jax.chunking.text.spans import readable
from qrag_jax.data.corpora.squad import read_squad
from qrag_jax.documents.read import read_files
from qrag_jax.index.methods import Method, single_step_method
from qrag_jax.measures.aggregate import mean_interval, paired_difference
from qrag_jax.search.corpus import Corpus, build_corpus
from qrag_jax.search.sentences import score_sentences
from qrag_jax.types import Chunk, Document, Embed, Span
from qrag_jax.unit_rows import unit_rows

RESULTS = Path(__file__).parent / "results"

OWN = Path(__file__).parent / "questions"
CHOSEN_ON, REPORTED_ON = ("fastapi", "handbook", "prometheus"), ("redis", "madetech", "nips")
POOL, TOP, QUOTES, SAMPLE = 10, 5, 3, 300
Proof = tuple[str, int, int]  # document, half-open characters


@dataclass(frozen=True)
class Asked:
    text: str
    proofs: tuple[Proof, ...]


@dataclass(frozen=True)
class Candidates:
    """Every sentence of the five passages of a question, best passage first; arrays have one value a sentence."""

    texts: tuple[str, ...]
    passage: np.ndarray
    is_right: np.ndarray
    words: np.ndarray
    both: np.ndarray
    found: np.ndarray  # score of its passage


WAYS: Mapping[str, Callable[[Candidates], np.ndarray]] = {
    "words": lambda one: one.words,
    "vectors": lambda one: 2 * one.both - one.words,
    "both": lambda one: one.both,
    "both, passage": lambda one: one.both + one.found / 2,
}


def read_collection(folder: Path) -> tuple[list[Document], list[Asked]]:
    questions = OWN / f"{folder.name}.jsonl"
    read_questions(questions, folder)  # refuses other texts
    documents = [replace(one, id=str(Path(one.id).relative_to(folder))) for one in read_files([folder])]
    rows = [json.loads(line) for line in questions.read_text("utf-8").splitlines()]
    proofs = [(row["quote"]["file"], row["quote"]["start"], row["quote"]["end"]) for row in rows]
    asked = [Asked(row["question"], (proof,)) for row, proof in zip(rows, proofs, strict=True)]
    return [one for one in documents if Path(one.id).suffix in SUFFIXES], asked


def read_articles(folder: Path) -> tuple[list[Document], list[Asked]]:
    task = read_squad(folder, "squad")
    documents = task.documents[::3]
    names = {one.id for one in documents}
    asked = [
        Asked(one.text, tuple((proof.document_id, proof.start, proof.end) for proof in one.evidence))
        for one in task.questions
        if one.relevant[0] in names
    ]
    drawn = np.random.default_rng(0).permutation(len(asked))[:SAMPLE]
    return list(documents), [asked[number] for number in sorted(drawn.tolist())]


def common(span: Span, proof: Proof) -> int:
    return max(0, min(span[1], proof[2]) - max(span[0], proof[1]))


def find(corpus: Corpus, question: str, embed: Embed) -> tuple[list[int], list[float]]:
    """The `TOP` nodes by words and vectors of the `POOL` by words, and their scores."""
    words = corpus.words.shares(question)
    nodes = np.argsort(-np.round(words, 9), kind="stable")[:POOL]
    asked, *vectors = unit_rows(embed([question, *(readable(corpus.texts[node]) for node in nodes)]).astype(np.float64))
    scores = np.round((words[nodes] + np.stack(vectors) @ asked) / 2, 9)
    order = np.argsort(-scores, kind="stable")[:TOP]
    return nodes[order].tolist(), scores[order].tolist()


def candidates(corpus: Corpus, asked: Asked, embed: Embed) -> Candidates:
    nodes, ranked = find(corpus, asked.text, embed)
    held = [share_held(node, asked.proofs) for node in corpus.nodes]
    if max(held) > 0 and all(held[node] < 0.5 for node in nodes):
        nodes[-1] = int(np.argmax(held))
    passages = [corpus.nodes[node] for node in nodes]
    words, both = (score_sentences(asked.text, passages, corpus.by_id, by) for by in (None, embed))
    cut = [(place, passage.document_id, span) for place, passage in enumerate(passages) for span in words[place]]
    return Candidates(
        tuple(corpus.by_id[name].text[slice(*span)] for _, name, span in cut),
        np.array([place for place, _, _ in cut]),
        np.array([is_right(name, span, asked.proofs) for _, name, span in cut]),
        np.array([words[place][span] for place, _, span in cut]),
        np.array([both[place][span] for place, _, span in cut]),
        np.array([ranked[place] for place, _, _ in cut]),
    )


def share_held(node: Chunk, proofs: Sequence[Proof]) -> float:
    """The largest share of a proof that the node holds."""
    own = [proof for proof in proofs if proof[0] == node.document_id]
    return max((sum(common(span, one) for span in node.spans) / (one[2] - one[1]) for one in own), default=0)


def is_right(name: str, span: Span, proofs: Sequence[Proof]) -> bool:
    return any(
        name == proof[0] and 2 * common(span, proof) >= min(span[1] - span[0], proof[2] - proof[1]) for proof in proofs
    )


def in_order(one: Candidates, scores: np.ndarray) -> list[int]:
    """The sentences by their scores, the first of equal texts alone."""
    different: dict[str, int] = {}
    for number in np.argsort(-np.round(scores, 9), kind="stable").tolist():
        different.setdefault(" ".join(one.texts[number].split()), number)
    return list(different.values())


def measures(one: Candidates, scores: np.ndarray) -> dict[str, float]:
    holding = one.passage[one.is_right][:1]
    inside = np.flatnonzero(np.isin(one.passage, holding))
    best = one.is_right[in_order(one, scores)[:QUOTES]]
    return {
        "passage": float(len(inside) and one.is_right[inside[np.argmax(np.round(scores[inside], 9))]]),
        "first": float(best[0]),
        "three": float(best.any()),
    }


def rows_of(sets: Mapping[str, Sequence[Candidates]]) -> list[dict]:
    """Every way on every set, compared with the first way question by question."""
    rows = []
    for name, some in sets.items():
        found = {way: [measures(one, score(one)) for one in some] for way, score in WAYS.items()}
        for way, each in found.items():
            for measure in ("passage", "first", "three"):
                own, first = (np.array([values[measure] for values in those]) for those in (each, found["words"]))
                mean, beside = mean_interval(own), paired_difference(own, first)
                rows.append(
                    {"set": name, "way": way, "measure": measure, "n": mean.n, "mean": mean.mean, "low": mean.low}
                    | {"high": mean.high, "better": beside.better, "worse": beside.worse, "p": beside.p_value}
                )
    return rows


def quote_rows(sets: Mapping[str, Sequence[Candidates]], way: str) -> list[dict]:
    """How many are quoted where a further one needs a share of the best score, and what they hold."""
    rows = []
    for name, some in sets.items():
        for share in (0.6, 0.7, 0.8, 0.9, 1.0):
            quoted = []
            for one in some:
                scores = WAYS[way](one)
                best, *others = in_order(one, scores)[:QUOTES]
                quoted.append([best, *(other for other in others if scores[other] >= share * scores[best])])
            right = np.array([one.is_right[quotes].sum() for one, quotes in zip(some, quoted, strict=True)])
            number = sum(map(len, quoted))
            rows.append({"set": name, "share": share, "quotes": number / len(some)})
            rows[-1] |= {"answered": float((right > 0).mean()), "right quotes": float(right.sum() / number)}
    return rows


def best_scores(some: Sequence[Candidates], way: str) -> np.ndarray:
    return np.array([WAYS[way](one).max() for one in some])


def side(collections: Path, names: Sequence[str], method: Method, embed: Embed) -> tuple[list, list]:
    """Candidates of the questions of these collections: with an answer, and asked of the others."""
    read = {name: read_collection(collections / name) for name in names}
    own, foreign = [], []
    for name, (documents, asked) in read.items():
        corpus = build_corpus(documents, method.chunk)
        others = [Asked(one.text, ()) for other in names if other != name for one in read[other][1]]
        own += [candidates(corpus, one, embed) for one in asked]
        foreign += [candidates(corpus, one, embed) for one in others]
    return own, foreign


def format_report(result: dict) -> str:
    ways, quotes = [], []
    for first in range(0, len(result["rows"]), 3):
        rows = result["rows"][first : first + 3]
        beside = [f"{row['better']}:{row['worse']}, p = {row['p']:.2g}" for row in rows[:2]]
        ways.append([f"{rows[0]['set']}, {rows[0]['n']}", rows[0]["way"], *map(interval, rows), *beside])
    for row in result["quotes"]:
        shares = [f"{row[name]:.2f}" for name in ("quotes", "answered", "right quotes")]
        quotes.append([row["set"], str(row["share"]), *shares])
    doubted = [[name, found] for name, found in result["doubted"].items()]
    heads = ["questions", "way", "passage", "first", "three", "passage, beside words", "first, beside words"]
    lines = [*grid(heads, ways), "", *grid(["questions", "share", "quotes", "answered", "right quotes"], quotes), ""]
    lines += grid(["questions", f"best score below {result['limit']:.4f}"], doubted)
    return "\n".join([*about_lines(result["about"]), *lines]) + "\n"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("collections", type=Path)
    parser.add_argument("squad", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="vectors of texts are kept there")
    parser.add_argument("--way", choices=WAYS, default="both", help="that quotes and doubts are measured with")
    args = parser.parse_args()
    method = single_step_method("hybrid")
    assert method.embed is not None
    embed = Kept(method.embed, args.cache)
    chosen, chosen_foreign = side(args.collections, CHOSEN_ON, method, embed)
    reported, reported_foreign = side(args.collections, REPORTED_ON, method, embed)
    documents, asked = read_articles(args.squad)
    articles = build_corpus(documents, method.chunk)
    sets = {"choice": chosen, "report": reported, "squad": [candidates(articles, one, embed) for one in asked]}
    limit = float(np.sort(best_scores(chosen, args.way))[int(0.05 * len(chosen))])  # doubts at most 5% of these
    doubted = {
        name: f"{(best_scores(some, args.way) < limit).sum()} of {len(some)}"
        for name, some in {**sets, "choice, foreign": chosen_foreign, "report, foreign": reported_foreign}.items()
    }
    result = {"about": about("tokenizers"), "rows": rows_of(sets), "quotes": quote_rows(sets, args.way)}
    result |= {"limit": limit, "doubted": doubted}
    (RESULTS / "sentences.json").write_text(json.dumps(result) + "\n")
    print(format_report(result))


if __name__ == "__main__":
    main()
