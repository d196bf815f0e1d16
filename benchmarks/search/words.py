"""Are words found however they are written, and is the exact identifier first?

    python -m benchmarks.search.words                 # 2 minutes on 2 cores
    python -m benchmarks.search.words --hyphens DATA  # 6 minutes

`words/pairs.jsonl` has texts with a word in one form, and questions with the other form: of each script, signs that
readers leave out or write in several ways. A pair is found if its text is the first of its pool: the texts of its
script with other questions, and five of other scripts. `words/identifiers.jsonl` has identifiers, versions and numbers,
each with three near misses in the same sentence; the pool has five more sentences. The exact one must be first, whether
it comes before or behind the near misses. In `words/other_sentences.jsonl` the near misses stand in sentences that are
nearer to the question in all other words. Lines are JSON with escapes, because many of the signs are invisible.

`--hyphens` compares rules for what is a name with hyphens (`Bm25Index.shares`), by nDCG@10 of hybrid search over all
paragraphs of DATA/squad, the documents of DATA/cranfield and the paragraphs of 1,794 train questions of DATA/hotpotqa.
It asks the questions with hyphens whose form as one word a text has too.
"""

import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.common import arguments, grid
from qrag_jax.chunking.text.words import joined_words
from qrag_jax.data.corpora.cranfield import read_cranfield
from qrag_jax.data.questions.multihop import read_hotpot
from qrag_jax.index.methods import Method, load_embedder, single_step_method
from qrag_jax.measures.trec import ndcg
from qrag_jax.search import bm25
from qrag_jax.search.hybrid import WORDS_WEIGHT, fused_with_words
from qrag_jax.types import Document
from qrag_jax.unit_rows import unit_rows

FOLDER = Path(__file__).parent / "words"
METHODS = ("bm25", "hybrid")
NUM_OTHERS = 5
FILL = (
    "The ferry rests on Sunday.",
    "Nobody has seen the pilot since the storm.",
    "The rope is ten metres long and lies behind the door.",
    "Where the path ends, a boat is kept for the keeper.",
    "What the tide brings is read and written down every night.",
)
ANY = 1_000_000_000  # texts
RULES = {  # most texts, one in so many texts, and in so many texts for each of its parts
    "none": (0, 300, 10),
    "3 texts, one in 300, parts in a tenth": (3, 300, 10),
    "the same, parts in a twentieth": (3, 300, 20),
    "3 texts": (3, 1, 1),
    "12 texts, one in 300, parts in a tenth": (12, 300, 10),
    "any number": (ANY, 1, 1),
}
Asked = list[tuple[str, set[int]]]  # questions, and the places of the texts that answer them
First = Callable[[Sequence[str], str], int]  # texts and a question -> the position of the best text; -1: none


def make_first(method: Method) -> First:
    def first(texts: Sequence[str], question: str) -> int:
        documents = [Document(f"{number:03}", text) for number, text in enumerate(texts)]
        corpus = method.build(documents)
        ranked = method.retrieve(question, corpus, 1)
        return int(corpus.nodes[ranked.ids[0]].document_id) if len(ranked) else -1

    return first


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / name).read_text("utf-8").splitlines()]


def missed_pairs(first: First) -> list[dict]:
    rows = read("pairs.jsonl")
    missed = []
    for place, row in enumerate(rows):
        others = [one for one in rows if one["question"] != row["question"]]
        same = [one["text"] for one in others if one["script"] == row["script"]]
        rest = [one["text"] for one in rows[place:] + rows if one["script"] != row["script"] and one in others]
        if first([*same, *rest[:NUM_OTHERS], row["text"]], row["question"]) != len(same) + NUM_OTHERS:
            missed.append(row)
    return missed


def missed_identifiers(first: First) -> list[dict]:
    missed = []
    for row in read("identifiers.jsonl"):
        right, *near = (row["text"].format(name) for name in (row["asked"], *row["near"]))
        question = row["question"].format(row["asked"])
        before, behind = first([right, *near, *FILL], question), first([*FILL, *near, right], question)
        if (before, behind) != (0, len(FILL) + len(near)):
            missed.append(row)
    return missed


def missed_among_others(first: First) -> list[dict]:
    missed = []
    for row in read("other_sentences.jsonl"):
        texts = [row["text"], *row["others"], *FILL]
        if (first(texts, row["question"]), first(texts[::-1], row["question"])) != (0, len(texts) - 1):
            missed.append(row)
    return missed


def report() -> str:
    names = ("pairs.jsonl", "identifiers.jsonl", "other_sentences.jsonl")
    pairs, identifiers, others = map(read, names)
    lines, details = [], []
    for name in METHODS:
        first = make_first(single_step_method(name))
        missed = (missed_pairs(first), missed_identifiers(first), missed_among_others(first))
        found = [len(rows) - len(some) for rows, some in zip((pairs, identifiers, others), missed, strict=True)]
        lines.append(
            [
                name,
                *(f"{number} of {len(rows)}" for number, rows in zip(found, (pairs, identifiers, others), strict=True)),
            ]
        )
        details += [f"- {name} misses {json.dumps(row)}" for row in sum(missed, [])]
    scripts = Counter(row["script"] for row in pairs)
    head = f"{len(pairs)} pairs of {len(scripts)} scripts and languages, {len(identifiers)} identifiers, "
    head += f"{len(others)} among other sentences."
    return "\n".join(
        [
            head,
            "",
            *grid(["method", "word found first", "exact identifier first", "among other sentences"], lines),
            "",
            *details,
        ]
    )


def collections(data: Path) -> Iterator[tuple[str, list[str], Asked]]:
    texts: list[str] = []
    asked: Asked = []
    with gzip.open(data / "squad" / "articles.jsonl.gz", "rt") as file:
        for paragraph in (one for line in file for one in json.loads(line)["paragraphs"]):
            asked += [(one["question"], {len(texts)}) for one in paragraph["qas"]]
            texts.append(paragraph["context"])
    yield "SQuAD", texts, asked
    task = read_cranfield(data / "cranfield", "cranfield")
    places = {document.id: place for place, document in enumerate(task.documents)}
    judged = [(one.text, {places[name] for name in one.relevant}) for one in task.questions]
    yield "Cranfield", [document.text for document in task.documents], judged
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as whole:
        for name in ("train", "train_more"):
            with gzip.open(data / "hotpotqa" / f"{name}.jsonl.gz", "rt") as file:
                whole.writelines(file)
        whole.flush()
        examples = read_hotpot(Path(whole.name)).examples
    places = {text: place for place, text in enumerate(dict.fromkeys(text for one in examples for text in one.chunks))}
    yield "HotpotQA", list(places), [(one.question, {places[one.chunks[i]] for i in one.gold}) for one in examples]


def hyphens(data: Path) -> str:
    """A table of `RULES`: nDCG@10, and the numbers of questions that are better and worse than without names."""
    embed, heads, rows = load_embedder("minilm"), ["a name is in at most"], {name: [name] for name in RULES}
    for collection, texts, all_asked in collections(data):
        words = bm25.Bm25Index(texts)
        asked = [one for one in all_asked if any(words.scores(form).any() for form in joined_words(one[0]))]
        cosines = unit_rows(embed([question for question, _ in asked])) @ unit_rows(embed(texts)).T
        heads += [f"{collection} ({len(asked)})", "better, worse"]
        before = None
        for name, (most, one_in, parts) in RULES.items():
            with patch.multiple(bm25, _NAMED=most, _ONE_IN=one_in, _SHARE_OF_PART=parts):
                found = np.array([
                    _ndcg(fused_with_words(own, words, question, WORDS_WEIGHT), gold)
                    for own, (question, gold) in zip(cosines, asked, strict=True)
                ])  # fmt: skip
            before = found if before is None else before
            better, worse = int((found > before + 1e-9).sum()), int((found < before - 1e-9).sum())
            rows[name] += [f"{found.mean():.3f}".lstrip("0"), "" if found is before else f"{better}, {worse}"]
    return "\n".join(grid(heads, rows.values()))


def _ndcg(scores: np.ndarray, gold: set[int]) -> float:
    best = np.argsort(-scores, kind="stable")[:10]
    return ndcg([str(place) for place in best.tolist()], {str(place): 1 for place in gold}, 10)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--hyphens", type=Path, metavar="DATA", help="compare rules for names with hyphens")
    data = parser.parse_args().hyphens
    print(report() if data is None else hyphens(data))


if __name__ == "__main__":
    main()
