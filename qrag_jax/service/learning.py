"""Trains a retriever on documents without labels: questions are made of the documents themselves (`qrag learn`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.annotate.asked_questions import ask_questions
from qrag_jax.annotate.made_questions import Made, MadeQuestion, MakingConfig, make_questions
from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.chunking.text.spans import readable
from qrag_jax.documents.read import read_files
from qrag_jax.eval.retrieval.calibration import fit_on_dev
from qrag_jax.eval.retrieval.score import open_run
from qrag_jax.files.whole_file import write_whole
from qrag_jax.index.folder import is_index
from qrag_jax.index.load import load_index
from qrag_jax.index.methods import Show, single_step_method
from qrag_jax.llm.config import LlmConfig, make_generator
from qrag_jax.measures.aggregate import Difference, paired_difference
from qrag_jax.models.towers.latent import LatentConfig
from qrag_jax.qrag.env import EnvConfig, PoolConfig
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig
from qrag_jax.qrag.tasks import PoolQuestion, Task, pool_task, subset
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.pool_texts import PoolTexts, pool_of
from qrag_jax.service.pooled import score_pool
from qrag_jax.train.optimise import GroupConfig, ScheduleConfig
from qrag_jax.train.qrag.config import DataConfig, DevConfig, RunConfig
from qrag_jax.train.qrag.learner import LearnerConfig
from qrag_jax.train.qrag.loop import train_together
from qrag_jax.train.qrag.saving import Member
from qrag_jax.train.run_folder import check_out, lock_runs
from qrag_jax.types import NOBODY, Chunk, Document, Embed, InputError, Watch, check_fields

QUESTIONS, PAIRS = "questions.jsonl", "pairs.jsonl"  # in the run's folder
_METHODS = ("trained", "hybrid")
_PLACES = 4  # picks: the most gold of a question
_PARTS = 20  # parts that are drawn for training or held out; documents, or pieces of them if there are fewer
_HELD_OUT = 0.15
_LEAST = 40  # questions to train on, and of several passages among them
_NEGATIVES = 4
_ENCODER = "minilm"


@dataclass(frozen=True)
class LearnRequest:
    """A retriever to train on documents without labels.

    Attributes:
        paths: files and folders, or an index.
        out: run folder.
        most: questions of each kind, as in `MakingConfig`.
        num_updates: of training.
        max_chunks: documents are drawn at random up to so many chunks, if there are more.
        llm: a language model that writes questions too; None asks none.
        num_asked: questions to ask it for.
        seed: of all draws.
        encoding: of text files.
    """

    paths: tuple[str, ...]
    out: str
    most: int = 350
    num_updates: int = 200
    max_chunks: int = 20_000
    llm: LlmConfig | None = None
    num_asked: int = 300
    seed: int = 0
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        positive = ("most", "num_updates", "max_chunks", "num_asked")
        check_fields(self, "learn", positive=positive, at_least={"seed": 0})


@dataclass(frozen=True)
class Learned:
    """The result.

    Attributes:
        out: folder of the run, with `questions.jsonl` and `pairs.jsonl`.
        kinds: number of questions by kind.
        left_out: number of drafts that gave no question, by reason.
        questions: all that were kept, with the titles of their passages.
        update: the update that was kept; 0 is the search before training.
        rows: a row for each method, over held-out questions: kind (empty for all), all_gold, low, high, n.
        gain: trained minus hybrid on held-out questions, paired.
    """

    out: Path
    kinds: Mapping[str, int]
    left_out: Mapping[str, int]
    questions: Sequence[Mapping[str, Any]]
    update: int
    rows: Sequence[Mapping[str, Any]]
    gain: Difference


def learn(request: LearnRequest, watch: Watch = NOBODY, show: Show | None = None) -> Learned:
    """Makes questions, trains a run over many documents on them, and measures it on those that it has not seen.

    Questions of a seventh of the documents are held out, with all that these documents answer: they choose the update,
    and say how good the run is beside plain search. The best update may be 0, the untrained search.

    Args:
        show: wraps the encoder, to show progress.

    Raises:
        UsageError: a path does not exist, or `out` contains a run.
        InputError: the documents give too few questions; the message says what is missing.
    """
    out = Path(request.out)
    with lock_runs([out]):
        check_out(out, resumes=False)
        corpus, embed = _corpus(request, show)
        pool, chunks = _drawn(corpus, request, watch)
        watch.doing("making questions")
        making = MakingConfig(request.most, seed=request.seed)
        made = make_questions(corpus.documents, chunks, _vectors(pool), making, embed)
        if request.llm is not None:
            made = _with_asked(made, corpus.documents, chunks, request, watch)
        train, dev = _tasks(made, pool, request.seed)
        config = learn_config(request, corpus.made_by.encoder or _ENCODER)
        watch.note(f"{train.name}: {_told(made.kinds)}; {len(train):,} to train on, {len(dev):,} held out")
        fit = partial(fit_on_dev, beam_widths=())
        train_together([Member(config, out)], train, watch.report, dev, fit)
        _write(out, made.questions, pool, chunks, corpus)
        return _measured(request, made, pool, dev, out, watch)


def learn_config(request: LearnRequest, encoder: str = _ENCODER) -> RunConfig:
    """The config of the run: `configs/qrag/learn_latent.yaml`, which explains the values.

    Args:
        encoder: of the documents.
    """
    frozen = GroupConfig(frozen=True)
    index = request.paths[0] if len(request.paths) == 1 and is_index(request.paths[0]) else ""
    return RunConfig(
        seed=request.seed,
        num_updates=request.num_updates,
        data=DataConfig(
            task="corpus", corpus=index, paths=(str(Path(request.out) / QUESTIONS),), batch_size=16, stretch=1.0
        ),
        dev=DevConfig(share=0.1, every=max(1, request.num_updates // 5), untrained=True),
        env=EnvConfig(
            num_steps=_PLACES,
            positions="none",
            fact_reward=0.2,
            links=True,
            coverage=True,
            ranking_scale=20.0,
            pool=PoolConfig(nearest=64, words=32, links=8, base="hybrid"),
        ),
        model=ModelConfig(
            latent=LatentConfig(prior=True, dim=32),
            encoder=EncoderSpec(encoder, num_layers=None, normalize=True, window=256, question_window=256),
        ),
        learner=LearnerConfig(
            losses={"ranking": 1.0},
            learning_rate=ScheduleConfig(0.003, 0.0, warmup=0.05),
            groups={"state/*": frozen, "action/*": frozen},
        ),
    )


def _corpus(request: LearnRequest, show: Show | None) -> tuple[Corpus, Embed]:
    """The documents, cut and embedded (of an index as they are stored, else as `qrag find` does), and their encoder."""
    if len(request.paths) == 1 and is_index(request.paths[0]):
        corpus = load_index(request.paths[0])
        method = single_step_method("dense", corpus.made_by.encoder or _ENCODER, show=show)
    else:
        method = single_step_method("dense", _ENCODER, show=show)
        corpus = method.build(read_files(request.paths, request.encoding))
    assert method.embed is not None  # of a dense search
    return corpus, method.embed


def _vectors(pool: PoolTexts) -> np.ndarray:
    assert pool.vectors is not None  # of `pool_of`
    return pool.vectors


def _drawn(corpus: Corpus, request: LearnRequest, watch: Watch) -> tuple[PoolTexts, list[Chunk]]:
    """The chunks to learn from: all, or those of documents that are drawn at random."""
    pool = pool_of(corpus)
    chunks = [corpus.nodes[node] for node in corpus.leaves.tolist()]
    if len(chunks) <= request.max_chunks:
        return pool, chunks
    sizes = np.bincount(pool.documents)
    order = np.random.default_rng([request.seed, 12]).permutation(len(sizes))
    chosen = order[: max(1, int((np.cumsum(sizes[order]) <= request.max_chunks).sum()))]
    kept = np.flatnonzero(np.isin(pool.documents, chosen))
    watch.note(
        f"learning from {len(kept):,} of {len(chunks):,} chunks, of {len(chosen):,} documents drawn at random; raise "
        "max_chunks to use more"
    )
    texts, titles = ([list(column)[i] for i in kept] for column in (pool.texts, pool.titles))
    part = PoolTexts(texts, titles, pool.documents[kept], _vectors(pool)[kept], pool.fingerprint)
    return part, [chunks[i] for i in kept]


def _with_asked(
    made: Made, documents: Sequence[Document], chunks: Sequence[Chunk], request: LearnRequest, watch: Watch
) -> Made:
    """Adds questions of a language model about passages that made questions need together."""
    assert request.llm is not None
    golds = [question.gold for question in made.questions if question.kind in ("bridge", "shared", "single")]
    order = np.random.default_rng([request.seed, 13]).permutation(len(golds))[: request.num_asked]
    asked = ask_questions(
        documents, chunks, [golds[i] for i in order], make_generator(request.llm), sampling=request.llm.sampling,
        prompts=request.llm.prompts, progress=watch.answered,
    )  # fmt: skip
    return Made((*made.questions, *asked.questions), {**made.left_out, **asked.left_out})


def _tasks(made: Made, pool: PoolTexts, seed: int) -> tuple[Task, Task]:
    """Questions to train on and questions that are held out, by the documents of their passages.

    A question is held out if its asking passage is of a held-out document, and trained on if none of its passages is.
    """
    name = f"{len(made.questions):,} questions made of {len(pool.texts):,} chunks"
    is_held = _held_out(pool.documents, seed)
    golds = [list(question.gold) for question in made.questions]
    held = np.flatnonzero([is_held[gold[0]] for gold in golds])
    kept = np.flatnonzero([not is_held[gold].any() for gold in golds])
    together = sum(len(golds[i]) > 1 for i in kept)
    if len(kept) < _LEAST or not len(held):
        raise InputError(
            f"{len(pool.texts):,} chunks give {len(kept):,} questions to train on and {len(held):,} to hold out, but "
            f"{_LEAST} and 1 are needed: give more documents, or longer ones"
        )
    if together < _LEAST:
        raise InputError(
            f"only {together:,} questions need several chunks together, because hardly two chunks share a title, a "
            f"heading, a name or an identifier: {_LEAST} are needed. Plain search needs no training here; or give "
            "documents that refer to each other"
        )
    asked = [PoolQuestion(f"{i}", one.text, tuple(sorted(one.gold))) for i, one in enumerate(made.questions)]
    whole = pool_task(name, pool, asked, sets=[one.kind for one in made.questions])
    return subset(whole, kept), subset(whole, held, f"{name}, held out")


def _held_out(documents: np.ndarray, seed: int) -> np.ndarray:
    """bool [chunks]: documents drawn at random up to a share of the chunks; of few documents, pieces of them."""
    _, part = np.unique(documents, return_inverse=True)
    if part.max() + 1 < _PARTS:
        part = np.arange(len(documents)) * _PARTS // len(documents)
    sizes, room, chosen = np.bincount(part), round(_HELD_OUT * len(documents)), []
    for one in np.random.default_rng([seed, 14]).permutation(len(sizes)).tolist():
        if sizes[one] <= room:
            chosen.append(one)
            room -= sizes[one]
    return np.isin(part, chosen)


def _measured(request: LearnRequest, made: Made, pool: PoolTexts, dev: Task, out: Path, watch: Watch) -> Learned:
    run = open_run(out)
    scored = score_pool(run, dev, _METHODS, (_PLACES,), request.seed, watch)
    complete = {method: [] for method in _METHODS}
    for row in scored.questions:
        complete[row["method"]].append(float(set(row["gold"]) <= set(row["picks"])))
    kinds, rows = np.array(dev.sets), []
    for method, values in complete.items():
        for kind in ("", *(kind for kind in dict.fromkeys(dev.sets or ()))):
            own = np.array(values)[(kinds == kind) | (kind == "")]
            rows.append({"method": method, "kind": kind, "all_gold": float(own.mean()), "n": len(own)})
    for row in (row for row in rows if not row["kind"]):
        whole = next(one for one in scored.rows if one["method"] == row["method"])
        row |= {"low": whole["low"], "high": whole["high"]}
    gain = paired_difference(np.array(complete["trained"]), np.array(complete["hybrid"]), seed=request.seed)
    shown = [
        {"kind": one.kind, "question": one.text, "passages": [pool.titles[i] for i in one.gold]}
        for one in made.questions
    ]
    update = int(load_checkpoint(out, groups=()).metadata["dev"]["update"])
    return Learned(out, made.kinds, made.left_out, shown, update, rows, gain)


def _write(
    out: Path, questions: Sequence[MadeQuestion], pool: PoolTexts, chunks: Sequence[Chunk], corpus: Corpus
) -> None:
    """Writes the questions for `qrag train retriever` and `qrag eval`, and pairs of passages for `qrag train reranker`.

    Each place has its text too: if the document has changed since, the question is refused where it is read.
    """
    texts = {document.id: document.text for document in corpus.documents}
    words, asked, pairs = Bm25Index(pool.texts), [], []
    for number, one in enumerate(questions):
        places = [(chunks[i].document_id, start, end) for i in one.gold for start, end in chunks[i].spans]
        evidence = [
            {"file": name, "start": start, "end": end, "text": readable(texts[name][start:end])}
            for name, start, end in places
        ]
        asked.append({"id": f"{number}", "kind": one.kind, "question": one.text, "evidence": evidence})
        best, _ = words.top_k(one.text, _NEGATIVES + len(one.gold))
        positives = [readable(str(pool.texts[i])) for i in one.gold]
        others = [text for text in (readable(str(pool.texts[i])) for i in best) if text not in positives]
        pairs += [{"question": one.text, "positive": text, "negatives": others[:_NEGATIVES]} for text in positives]
    for name, rows in ((QUESTIONS, asked), (PAIRS, pairs)):
        write_whole(out / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _told(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
