"""What `parents.py` asks: parents that are known by their children, and questions whose parent is known."""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.scisumm import read_papers
from qrag_jax.files.text_files import read_json_lines
from qrag_jax.types import Embed

MIN_CHILDREN = 2
NOVELS = 4  # the shortest, for time, of the dev split
SENTENCES_A_CHAPTER = 6
MIN_WORDS = 8  # of a sentence that is a question
SQUAD_QUESTIONS = 1500
PILOT = 25
EMBED_AT_A_TIME = 2_000


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The JSON lines of a data set, known to be right."""
    return [dict(row) for _, row in read_json_lines(file, "rows of a data set")]


@dataclass(frozen=True)
class Parent:
    """A section, paragraph or chapter.

    Attributes:
        document: its document's id.
        children: its sentences.
    """

    document: str
    children: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.children)


@dataclass(frozen=True)
class ParentSet:
    """Parents and questions.

    Attributes:
        name: of the set.
        parents: all of them are searched for each question.
        questions: what is asked.
        gold: numbers of the parents that answer each; at least one.
    """

    name: str
    parents: tuple[Parent, ...]
    questions: tuple[str, ...]
    gold: tuple[frozenset[int], ...]

    def of_documents(self, name: str, documents: set[str]) -> "ParentSet":
        """The parents of some documents, and what is asked of them."""
        return self.of_parents(name, [i for i, parent in enumerate(self.parents) if parent.document in documents])

    def of_parents(self, name: str, kept: Sequence[int]) -> "ParentSet":
        """Some parents, and what is asked of them."""
        new = {old: number for number, old in enumerate(kept)}
        gold = [frozenset(new[i] for i in own if i in new) for own in self.gold]
        asked = [i for i, own in enumerate(gold) if own]
        parents = tuple(self.parents[i] for i in kept)
        return ParentSet(name, parents, tuple(self.questions[i] for i in asked), tuple(gold[i] for i in asked))


def load_sets(data: Path) -> list[ParentSet]:
    """All sets, nothing of which is ever trained on."""
    papers = cited_papers(data)
    pilot = papers.of_documents("papers of the pilot", pilot_papers(data))
    return [pilot, new_papers(data), papers, squad(data), novels(data)]


def cited_papers(data: Path) -> ParentSet:
    """Sections of the 60 cited papers, asked by the sentences that cite them.

    A section has at least two sentences. A citance is asked once, and answered by the sections that its first annotator
    named a sentence of.
    """
    parents: list[Parent] = []
    place: dict[tuple[str, str], int] = {}
    for paper in read_papers(data / "scisumm" / "cited_papers.jsonl.gz"):
        for section in paper.sections:
            if len(section.sentences) < MIN_CHILDREN:
                continue
            place |= {(paper.id, sid): len(parents) for sid, _ in section.sentences}
            parents.append(Parent(paper.id, tuple(text for _, text in section.sentences if text)))
    gold: dict[tuple[str, str], set[int]] = {}
    for row in rows_of(data / "scisumm" / "citances.jsonl.gz"):
        found = {place[row["ref"], sid] for sid in row["ref_sids"] if (row["ref"], sid) in place}
        if found and row["sids_valid"]:
            gold.setdefault((row["ref"], row["citance"]), found)
    return ParentSet("papers", tuple(parents), tuple(text for _, text in gold), tuple(map(frozenset, gold.values())))


def pilot_papers(data: Path) -> set[str]:
    """The 25 papers that earlier numbers are of: the first ones after a shuffle of all 60 with the seed 0."""
    ids = [paper.id for paper in read_papers(data / "scisumm" / "cited_papers.jsonl.gz")]
    random.Random(0).shuffle(ids)
    return set(ids[:PILOT])


def new_papers(data: Path) -> ParentSet:
    """The cited papers that the pilot did not see, with their own sections alone to search."""
    papers = cited_papers(data)
    new = {parent.document for parent in papers.parents} - pilot_papers(data)
    return papers.of_documents("papers outside the pilot", new)


def squad(data: Path) -> ParentSet:
    """Paragraphs of 24 articles, asked by a sample of their questions."""
    parents: list[Parent] = []
    asked: list[tuple[str, int]] = []
    for article in rows_of(data / "squad" / "articles.jsonl.gz"):
        for paragraph in article["paragraphs"]:
            text = paragraph["context"]
            sentences = tuple(text[start:end] for start, end in split_sentences(text))
            if len(sentences) >= MIN_CHILDREN:
                asked += [(row["question"].strip(), len(parents)) for row in paragraph["qas"]]
                parents.append(Parent(article["title"], sentences))
    drawn = np.random.default_rng(0).permutation(len(asked))[:SQUAD_QUESTIONS]
    questions, gold = zip(*(asked[i] for i in sorted(drawn.tolist())), strict=True)
    return ParentSet("paragraphs", tuple(parents), questions, tuple(frozenset([one]) for one in gold))


def novels(data: Path) -> ParentSet:
    """Chapters of the shortest novels of the dev split, asked by sentences that are taken out of them."""
    books = rows_of(data / "novels" / "dev.jsonl.gz")
    size = {book["id"]: sum(len(text) for part in book["sections"] for text in part["paras"]) for book in books}
    draw = np.random.default_rng(0)
    parents: list[Parent] = []
    asked: list[tuple[str, int]] = []
    for book in sorted(books, key=lambda book: size[book["id"]])[:NOVELS]:
        for part in book["sections"]:
            split = [text[start:end] for text in part["paras"] for start, end in split_sentences(text)]
            known = set[str]()
            sentences = [one for one in split if not (one in known or known.add(one))]
            long = [i for i, one in enumerate(sentences) if len(one.split()) >= MIN_WORDS]
            if len(long) < 2 * SENTENCES_A_CHAPTER:
                continue
            out = set(draw.choice(long, SENTENCES_A_CHAPTER, replace=False).tolist())
            asked += [(sentences[i], len(parents)) for i in sorted(out)]
            parents.append(Parent(book["id"], tuple(one for i, one in enumerate(sentences) if i not in out)))
    questions, gold = zip(*asked, strict=True)
    return ParentSet("chapters", tuple(parents), questions, tuple(frozenset([one]) for one in gold))


class Kept:
    """An embedder whose vectors stay in a folder: what is known is not embedded again. Satisfies `types.Embed`."""

    def __init__(self, embed: Embed, folder: Path) -> None:
        """Reads what is there.

        Args:
            embed: of one encoder and window; the folder is its alone.
            folder: is made.
        """
        self._embed, self._folder = embed, folder
        self._rows: dict[bytes, np.ndarray] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(folder.glob("*.npz")):
            with np.load(file, allow_pickle=False) as stored:
                self._rows |= dict(zip(stored["keys"].tolist(), stored["vectors"], strict=True))

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest().encode() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows}
        for first in range(0, len(new), EMBED_AT_A_TIME):
            own = dict(list(new.items())[first : first + EMBED_AT_A_TIME])
            vectors = self._embed(list(own.values()))
            self._rows |= dict(zip(own, vectors, strict=True))
            number = len(list(self._folder.glob("*.npz")))
            np.savez(self._folder / f"{number:05}.npz", keys=np.array(list(own)), vectors=vectors)
        return np.stack([self._rows[key] for key in keys])


def sample_set(own: ParentSet, number: int, is_wanted: Callable[[Parent], bool]) -> ParentSet:
    """A fixed sample of the wanted parents that are asked for, and all questions that one of them answers."""
    asked = sorted(i for i in frozenset[int]().union(*own.gold) if is_wanted(own.parents[i]))
    kept = sorted(np.random.default_rng(0).permutation(asked)[:number].tolist())
    return own.of_parents(f"{own.name}, {len(kept)} of them", kept)


def summary(sets: Sequence[ParentSet]) -> list[Mapping[str, object]]:
    """What the sets are, for the table."""
    return [
        {
            "set": one.name,
            "parents": len(one.parents),
            "questions": len(one.questions),
            "children": sum(len(parent.children) for parent in one.parents),
        }
        for one in sets
    ]
