"""Trains a retriever on documents without labels: questions are made of the documents themselves (`qrag learn`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
from qrag_jax.index.info import index_info
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
from qrag_jax.types import AS_MADE, NOBODY, Chunk, Document, Embed, InputError, TextGenerator, Watch, check_fields

QUESTIONS, PAIRS = "questions.jsonl", "pairs.jsonl"  # in the run's folder
_METHODS = ("trained", "hybrid")
_PLACES = 4  # picks: the most gold of a question
_PARTS = 20  # parts that are drawn for training or held out; documents, or pieces of them if there are fewer
_HELD_OUT = 0.1  # share of the chunks, twice
_LEAST, _LEAST_HELD_OUT = 40, 10  # questions to train on (and of several passages among them), in each held-out part
_NEGATIVES = 4
_MARGIN = 0.05  # of mean return: a smaller gain on made questions does not carry over to real ones
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
        llm: a language model that writes questions too, of at most `llm.max_answer_tokens`; None asks none.
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

    Two parts of the documents, a tenth of the chunks each, are held out: the questions that begin at one choose the
    update, and those that begin at the other say how good the run is beside plain search. Nothing is trained on a
    question that any of their chunks answers. The best update may be 0, plain search itself.

    Args:
        show: wraps the encoder, to show progress.

    Raises:
        UsageError: a path does not exist, or `out` contains a run.
        InputError: the documents give too few questions; the message says what is missing.
    """
    out = Path(request.out)
    with lock_runs([out]):
        check_out(out, resumes=False)
        generator = None if request.llm is None else make_generator(request.llm)
        corpus, embed = _corpus(request, show)
        pool, chunks = _drawn(corpus, request, watch)
        watch.doing("making questions")
        making = MakingConfig(request.most, seed=request.seed)
        made = make_questions(corpus.documents, chunks, _vectors(pool), making, embed)
        if generator is not None:
            made = _with_asked(made, corpus.documents, chunks, request, generator, watch)
        parts = _tasks(made, pool, request.seed)
        config = learn_config(request, corpus.made_by.encoder or _ENCODER)
        watch.note(
            f"{parts.train.name}: {_told(made.kinds)}; {len(parts.train):,} to train on, {len(parts.choosing):,} to "
            f"choose by, {len(parts.judging):,} to judge by"
        )
        _write(out, made.questions, parts, pool, chunks, corpus)  # before the training, so a kill leaves them
        fit = partial(fit_on_dev, beam_widths=())
        train_together([Member(config, out)], parts.train, watch.report, parts.choosing, fit)
        return _measured(request, made, pool, parts, out, watch)


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
        dev=DevConfig(share=0.1, every=max(1, request.num_updates // 5), untrained=True, margin=_MARGIN),
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
    """The documents, cut and embedded (of an index as they are stored, else as `qrag find` does), and their encoder.

    Raises:
        InputError: an index of a run, or whose encoder reads otherwise than that of a run.
    """
    if len(request.paths) != 1 or not is_index(request.paths[0]):
        method = single_step_method("dense", _ENCODER, show=show)
        assert method.embed is not None  # of a dense search
        return method.build(read_files(request.paths, request.encoding)), method.embed
    settings = index_info(request.paths[0]).settings
    reason = "is an index of a run" if settings.is_run else ""
    if settings.reads != AS_MADE:
        reason = "was embedded with a prompt, fewer components or another precision"
    if reason:
        raise InputError(
            reason, file=request.paths[0], remedy=": build one with an encoder as it is (qrag index build INDEX PATHS)"
        )
    corpus = load_index(request.paths[0])
    method = single_step_method("dense", corpus.made_by.encoder or settings.model, show=show)
    assert method.embed is not None
    return corpus, method.embed


def _vectors(pool: PoolTexts) -> np.ndarray:
    assert pool.vectors is not None  # of `pool_of`
    return pool.vectors


def _drawn(corpus: Corpus, request: LearnRequest, watch: Watch) -> tuple[PoolTexts, list[Chunk]]:
    """The chunks to learn from: each text once, and of more than `max_chunks` those of documents drawn at random."""
    pool = pool_of(corpus)
    leaves = corpus.leaves.tolist()
    _, first = np.unique([corpus.copy_key(node) for node in leaves], return_index=True)
    kept = np.sort(first)
    if len(kept) > request.max_chunks:
        documents = pool.documents[kept]
        chosen = _some_parts(documents, request.max_chunks, np.random.default_rng([request.seed, 12]))
        kept = kept[np.isin(documents, chosen)]
        watch.note(
            f"learning from {len(kept):,} of {len(leaves):,} chunks, of {len(chosen):,} documents drawn at random; "
            "raise max_chunks to use more"
        )
    texts, titles = ([str(column[i]) for i in kept] for column in (pool.texts, pool.titles))
    part = PoolTexts(texts, titles, pool.documents[kept], _vectors(pool)[kept], pool.fingerprint)
    return part, [corpus.nodes[leaves[i]] for i in kept]


def _some_parts(parts: np.ndarray, room: int, rng: np.random.Generator) -> list[int]:
    """Parts in random order, each that still fits into so many chunks; the smallest one if none does.

    Args:
        parts: int [chunks], the part of each chunk.
    """
    sizes = np.bincount(parts)
    chosen: list[int] = []
    order = rng.permutation(np.flatnonzero(sizes))
    for part in order.tolist():
        if sizes[part] <= room:
            chosen.append(part)
            room -= int(sizes[part])
    return chosen or [int(order[np.argmin(sizes[order])])]


def _with_asked(
    made: Made,
    documents: Sequence[Document],
    chunks: Sequence[Chunk],
    request: LearnRequest,
    generator: TextGenerator,
    watch: Watch,
) -> Made:
    """Adds questions of a language model about passages that made questions need together."""
    assert request.llm is not None
    golds = [question.gold for question in made.questions if question.kind in ("bridge", "shared", "single")]
    order = np.random.default_rng([request.seed, 13]).permutation(len(golds))[: request.num_asked]
    asked = ask_questions(
        documents, chunks, [golds[i] for i in order], generator, sampling=request.llm.sampling,
        max_tokens=request.llm.max_answer_tokens, prompts=request.llm.prompts, progress=watch.answered,
    )  # fmt: skip
    watch.note(f"{len(asked.questions):,} of {len(order):,} questions of the language model were kept")
    return Made((*made.questions, *asked.questions), {**made.left_out, **asked.left_out})


class _Parts(NamedTuple):
    """Questions to train on, to choose the update by, and to judge the run by; their numbers among all questions."""

    train: Task
    choosing: Task
    judging: Task
    numbers: tuple[np.ndarray, np.ndarray, np.ndarray]


def _tasks(made: Made, pool: PoolTexts, seed: int) -> _Parts:
    """The parts of the questions, by the documents of their passages.

    A question is held out if its asking passage is of a held-out document, and trained on if none of its passages is.
    """
    name = f"{len(made.questions):,} questions made of {len(pool.texts):,} chunks"
    part = _held_out(pool.documents, seed)
    golds = [list(question.gold) for question in made.questions]
    first = np.array([part[gold[0]] for gold in golds], int)
    numbers = (
        np.flatnonzero([not part[gold].any() for gold in golds]),
        np.flatnonzero(first == 1),
        np.flatnonzero(first == 2),
    )
    together = sum(len(golds[i]) > 1 for i in numbers[0])
    left_out = "".join(f"; {number:,} drafts: {reason}" for reason, number in made.left_out.items())
    if len(numbers[0]) < _LEAST or min(map(len, numbers[1:])) < _LEAST_HELD_OUT:
        sizes = ", ".join(f"{len(own):,}" for own in numbers)
        raise InputError(
            f"{len(pool.texts):,} chunks give {sizes} questions to train on, to choose and to judge by, but {_LEAST}, "
            f"{_LEAST_HELD_OUT} and {_LEAST_HELD_OUT} are needed: give more documents, or longer ones{left_out}"
        )
    if together < _LEAST:
        raise InputError(
            f"only {together:,} questions need several chunks together, because hardly two chunks share a title, a "
            f"heading, a name or an identifier: {_LEAST} are needed. Plain search needs no training here; or give "
            f"documents that refer to each other{left_out}"
        )
    asked = [PoolQuestion(f"{i}", one.text, tuple(sorted(one.gold))) for i, one in enumerate(made.questions)]
    whole = pool_task(name, pool, asked, sets=[one.kind for one in made.questions])
    train, choosing, judging = (subset(whole, own) for own in numbers)
    return _Parts(train, choosing, judging, numbers)


def _held_out(documents: np.ndarray, seed: int) -> np.ndarray:
    """int [chunks]: 1 in documents to choose by, 2 in those to judge by, 0 elsewhere; of few documents, pieces."""
    _, part = np.unique(documents, return_inverse=True)
    if part.max() + 1 < _PARTS:
        part = np.arange(len(documents)) * _PARTS // len(documents)
    rng, room = np.random.default_rng([seed, 14]), round(_HELD_OUT * len(documents))
    choosing = np.isin(part, _some_parts(part, room, rng))
    rest = np.flatnonzero(~choosing)
    judging = np.zeros(len(part), bool)
    if len(rest):
        judging[rest] = np.isin(part[rest], _some_parts(part[rest], room, rng))
    return choosing + 2 * judging


def _measured(request: LearnRequest, made: Made, pool: PoolTexts, parts: _Parts, out: Path, watch: Watch) -> Learned:
    scored = score_pool(open_run(out), parts.judging, _METHODS, (_PLACES,), request.seed, watch)
    kinds = np.array(parts.judging.sets)
    rows: list[dict[str, Any]] = []
    complete: dict[str, np.ndarray] = {}
    for whole in scored.rows:
        method = whole["method"]
        own = [row for row in scored.questions if row["method"] == method]
        found = complete[method] = np.array([set(row["gold"]) <= set(row["picks"]) for row in own], float)
        rows.append({"kind": ""} | {name: whole[name] for name in ("method", "all_gold", "low", "high", "n")})
        for kind in dict.fromkeys(kinds.tolist()):
            some = found[kinds == kind]
            rows.append({"method": method, "kind": kind, "all_gold": float(some.mean()), "n": len(some)})
    asking = [str(pool.documents[made.questions[i].gold[0]]) for i in parts.numbers[2]]
    groups = asking if len(set(asking)) > 1 else None  # questions to one document resemble each other
    gain = paired_difference(complete["trained"], complete["hybrid"], groups=groups, seed=request.seed)
    shown = [
        {"kind": one.kind, "question": one.text, "passages": [pool.titles[i] for i in one.gold]}
        for one in made.questions
    ]
    update = int(load_checkpoint(out, groups=()).metadata["dev"]["update"])
    return Learned(out, made.kinds, made.left_out, shown, update, rows, gain)


def _write(
    out: Path,
    questions: Sequence[MadeQuestion],
    parts: _Parts,
    pool: PoolTexts,
    chunks: Sequence[Chunk],
    corpus: Corpus,
) -> None:
    """Writes the questions for `qrag train retriever` and `qrag eval`, and pairs of passages for `qrag train reranker`.

    Each place has its text too: if the document has changed since, the question is refused where it is read. Questions
    that are held out say so, and give no pairs.
    """
    out.mkdir(parents=True, exist_ok=True)
    texts = {document.id: document.text for document in corpus.documents}
    words, trained = Bm25Index(pool.texts), set(parts.numbers[0].tolist())
    asked: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    for number, one in enumerate(questions):
        places = [(chunks[i].document_id, *span) for i in one.gold for span in chunks[i].spans]
        evidence = [
            {"file": readable(name), "start": start, "end": end, "text": readable(texts[name][start:end])}
            for name, start, end in places
        ]
        row = {"id": f"{number}", "kind": one.kind, "question": readable(one.text), "evidence": evidence}
        asked.append(row if number in trained else row | {"held_out": True})
        if number not in trained:
            continue
        best, _ = words.top_k(one.text, _NEGATIVES + len(one.gold))
        positives = [readable(str(pool.texts[i])) for i in one.gold]
        others = [text for text in (readable(str(pool.texts[i])) for i in best) if text not in positives]
        pairs += [
            {"question": row["question"], "positive": text, "negatives": others[:_NEGATIVES]} for text in positives
        ]
    for name, rows in ((QUESTIONS, asked), (PAIRS, pairs)):
        write_whole(out / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _told(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
