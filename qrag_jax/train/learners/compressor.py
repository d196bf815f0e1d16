"""Training of the compressor: near to a target, or also found by sentences that were taken out of the section.

    distance    L = mean_p |y_p - target_p|^2
    ranking     L = distance - mean_(p, q) log softmax_p' (q . y_p' / temperature)_p

y_p is the vector of section p of a batch; q is a sentence that was removed from its children. The squared distance is
the paper's loss; the ranking loss is ours. The two disagree: a vector nearer to the target is not always found more
often. So several networks, losses and strengths are trained on some documents, and other documents choose among them
by the recall of their removed sentences. A third part, used for neither, estimates the quality. The chosen candidate
is then trained on all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.checkpoint import save_checkpoint
from qrag_jax.chunking.tree.parent_vectors import FromTexts, mean_of_children
from qrag_jax.config import to_dict
from qrag_jax.data.corpora.headed_documents import HeadedDocument
from qrag_jax.models.compressor import KIND, Compressor, Params, compress, compress_parents, describe_compressor, init
from qrag_jax.names import COMPRESSOR_KINDS, COMPRESSOR_LOSSES, CompressorKind, CompressorLoss
from qrag_jax.train.learners.compressor_data import (
    MIN_QUESTION_TOKENS,
    Asked,
    Batch,
    Section,
    Shape,
    ask_sections,
    draw_batch,
    read_sections,
)
from qrag_jax.train.learners.fitting import deal_parts, documents_sha256, run_updates
from qrag_jax.train.run_folder import open_log, open_runs
from qrag_jax.train.trainer import Hooks, Plan, Report
from qrag_jax.types import CountTokens, Embed, InputError, UsageError, check_fields

MIN_DOCUMENTS = 3
TOP_K = 5
_CHOOSES, _TELLS = 0, 1  # parts of the documents; the others train
_QUESTIONS = 6  # most that are taken out of a section that chooses or tells


@dataclass(frozen=True)
class CompressorConfig:
    """How a compressor is trained.

    Attributes:
        seed: of parts, parameters and batches.
        kinds: of networks that are tried.
        losses: that are tried.
        strengths: of weight decay that are tried.
        hidden: units of the inner layers.
        num_updates: optimiser steps.
        learning_rate: of AdamW, at first; it falls to 0 along a cosine.
        temperature: of the ranking.
        shape: of batches.
        num_parts: that the documents are dealt into, at most as many as there are; one chooses, one tells what to
            expect.
        log_every: updates between two lines of metrics.jsonl.
    """

    seed: int = 0
    kinds: tuple[CompressorKind, ...] = COMPRESSOR_KINDS
    losses: tuple[CompressorLoss, ...] = COMPRESSOR_LOSSES
    strengths: tuple[float, ...] = (0.01, 0.3)
    hidden: int = 64
    num_updates: int = 400
    learning_rate: float = 2e-3
    temperature: float = 0.05
    shape: Shape = Shape()
    num_parts: int = 6
    log_every: int = 20

    def __post_init__(self) -> None:
        least = {"num_parts": MIN_DOCUMENTS, "strengths": 0}  # one part trains, one chooses, one tells
        within = {"temperature": "(0, inf]"}
        check_fields(self, positive=("hidden", "num_updates", "log_every"), at_least=least, within=within)
        if not self.strengths:
            raise UsageError("give at least one", field="strengths")
        for name, known in (("kinds", COMPRESSOR_KINDS), ("losses", COMPRESSOR_LOSSES)):
            given = getattr(self, name)
            if not given or not set(given) <= set(known):
                raise UsageError(f"{name}={list(given)}: give at least one of {', '.join(known)}")

    @property
    def candidates(self) -> list["Candidate"]:
        """All combinations to try."""
        return [Candidate(kind, loss, one) for kind in self.kinds for loss in self.losses for one in self.strengths]


@dataclass(frozen=True)
class Candidate:
    """A network and how it is trained."""

    kind: CompressorKind
    loss: CompressorLoss
    strength: float


@dataclass(frozen=True, eq=False)
class FittedCompressor:
    """A compressor and its estimated quality.

    Attributes:
        compressor: trained on all documents.
        chosen: how.
        tried: of each candidate R@1 and R@5 on the part that chooses.
        places: by `compressor`, `mean`, `target` and `best_child`: int64 [n], rank from 0 of the right section, of each
            question of documents that took no part. By the chosen candidate, trained without them.
        squared_distance: of the vectors of sections of these documents to the target, by `compressor` and `mean`.
        num_sections: that were searched there.
    """

    compressor: Compressor
    chosen: Candidate
    tried: dict[Candidate, tuple[float, float]]
    places: dict[str, np.ndarray]
    squared_distance: dict[str, float]
    num_sections: int


def fit_compressor(
    documents: Sequence[HeadedDocument],
    embed: Embed,
    count: CountTokens,
    targets: FromTexts,
    fingerprint: str,
    encoder: str,
    config: CompressorConfig | None = None,
    out: Path | None = None,
    report: Report | None = None,
) -> FittedCompressor:
    """Trains a compressor on headed documents, in minutes once their sentences are embedded.

    Args:
        documents: at least three with a section of two sentences.
        embed: vectors of sentences.
        count: tokens of a text.
        targets: texts of sections -> what their vectors are to be near to (`text_parents`, `make_lead_targets`).
        fingerprint: of the encoder.
        encoder: where it comes from, for those who load the compressor.
        config: how it is trained.
        out: run folder, which must not hold a run; None writes nothing.
        report: called with progress.

    Raises:
        UsageError: `out` holds a run or is in use.
        InputError: fewer than three documents, or too few sections or sentences to ask with.
    """
    config = CompressorConfig() if config is None else config
    report = (lambda *_: None) if report is None else report
    with open_runs([(out, None)]):
        sections = read_sections(documents, embed, count, targets, report)
        facts = describe_sections(documents, sections)
        with open_log(out, facts, 0, tensorboard=False) as log:
            fitted = fit_sections(sections, facts, fingerprint, encoder, config, Hooks(out, log), report)
        if out is not None:
            compressor = fitted.compressor
            arrays = {KIND: dict(compressor.params)}
            save_checkpoint(out, config.num_updates, arrays, to_dict(config), metadata=describe_compressor(compressor))
        return fitted


def fit_sections(
    sections: Sequence[Section],
    facts: Mapping[str, Any],
    fingerprint: str,
    encoder: str,
    config: CompressorConfig,
    hooks: Hooks | None = None,
    report: Report = lambda *_: None,
) -> FittedCompressor:
    """Trains a compressor on sections that were read; arguments as of `fit_compressor`."""
    part = deal_sections(sections, config.num_parts, config.seed)
    trains = [one for one, its in zip(sections, part, strict=True) if its not in (_CHOOSES, _TELLS)]
    chooses, tells = (
        ask_sections([one for one, its in zip(sections, part, strict=True) if its == number], _QUESTIONS, config.seed)
        for number in (_CHOOSES, _TELLS)
    )
    if not len(chooses.questions) or not len(tells.questions):
        raise InputError(
            f"the held-out documents have no sentence of {MIN_QUESTION_TOKENS} or more tokens, which is needed as a "
            "test question: give more documents, or longer sentences"
        )
    tried: dict[Candidate, tuple[float, float]] = {}
    trained: dict[Candidate, dict[str, np.ndarray]] = {}
    for number, candidate in enumerate(config.candidates):
        trained[candidate] = train_candidate(trains, candidate, config)
        tried[candidate] = recalls(_found(chooses, trained[candidate]))
        report("choose", number + 1, len(config.candidates), {"recall": tried[candidate][1]})
    best = max(tried, key=lambda one: sum(tried[one]))
    params = train_candidate(sections, best, config, hooks, report)
    told = {
        "num_documents": len({one.document for one in sections}),
        **facts,
        "loss": best.loss,
        "strength": best.strength,
    }
    return FittedCompressor(
        Compressor(params, best.kind, fingerprint, encoder, told),
        best,
        tried,
        _places(tells, trained[best]),
        {
            "compressor": _distance(tells, _vectors(tells, trained[best])),
            "mean": _distance(tells, _vectors(tells, None)),
        },
        len(tells.sections),
    )


def describe_sections(documents: Sequence[HeadedDocument], sections: Sequence[Section]) -> dict[str, Any]:
    """The training data of a compressor: sizes, and a digest of ids, texts and boundaries."""
    return {
        "num_documents": len(documents),
        "num_sections": len(sections),
        "num_sentences": sum(len(one.children) for one in sections),
        "data_sha256": documents_sha256(documents),
    }


def deal_sections(sections: Sequence[Section], num_parts: int, seed: int) -> Int[np.ndarray, " sections"]:
    """The part of each section: documents are dealt at random, so that no two parts share one."""
    documents = [one.document for one in sections]
    if (number := len(set(documents))) < MIN_DOCUMENTS:
        raise InputError(
            f"documents with a section of two sentences: {number}; training needs 3, one to learn from, one to "
            "choose settings on, and one to test on: give more"
        )
    return deal_parts(documents, num_parts, seed)


# --- updates ---------------------------------------------------------------------------------------------------------


def squared_distance(found: Float[Array, "sections dim"], targets: Float[Array, "sections dim"]) -> Float[Array, ""]:
    """mean_p |y_p - target_p|^2."""
    return jnp.square(found - targets).sum(axis=1).mean()


def ranking_loss(
    found: Float[Array, "sections dim"],
    questions: Float[Array, "sections questions dim"],
    asked: Bool[Array, "sections questions"],
    temperature: float,
) -> Float[Array, ""]:
    """- mean over questions of log softmax_p' (q . y_p' / temperature), at the section p that q was taken out of."""
    scores = jnp.einsum("pqd,nd->pqn", questions, found) / temperature
    own = jnp.arange(len(found))
    right = jax.nn.log_softmax(scores)[own, :, own]
    return -(right * asked).sum() / jnp.maximum(asked.sum(), 1)


def train_candidate(
    sections: Sequence[Section],
    candidate: Candidate,
    config: CompressorConfig,
    hooks: Hooks | None = None,
    report: Report = lambda *_: None,
) -> dict[str, np.ndarray]:
    """The parameters of one network, on the host."""
    schedule = optax.cosine_decay_schedule(config.learning_rate, config.num_updates)
    optimiser = optax.adamw(schedule, weight_decay=candidate.strength)

    def total(params: Params, pool: tuple[()], batch: Batch) -> tuple[Array, dict[str, Array]]:
        found = jax.vmap(compress, in_axes=(None, 0, 0, 0))(params, batch.children, batch.num_tokens, batch.mask)
        metrics = {"distance": squared_distance(found, batch.targets)}
        if candidate.loss == "ranking":
            metrics["ranking"] = ranking_loss(found, batch.questions, batch.asked, config.temperature)
        loss = sum(metrics.values(), start=jnp.zeros(()))
        return loss, {"loss": loss, **metrics}

    def batch(number: int) -> Batch:
        return draw_batch(sections, config.shape, config.seed, number)

    dim = sections[0].children.shape[1]
    params = init(jax.random.key(config.seed), candidate.kind, dim, config.hidden)
    plan = Plan(config.num_updates, config.log_every, config.num_updates)
    return run_updates(params, optimiser, total, batch, plan, Hooks() if hooks is None else hooks, report)


# --- choice ----------------------------------------------------------------------------------------------------------


def recalls(places: Int[np.ndarray, " questions"]) -> tuple[float, float]:
    """R@1 and R@5 from the ranks of the right sections."""
    return float((places < 1).mean()), float((places < TOP_K).mean())


def places_of(
    scores: Float[np.ndarray, "questions sections"], right: Int[np.ndarray, " questions"]
) -> Int[np.ndarray, " questions"]:
    """Rank from 0 of the section that is right; of equal scores the first section comes first."""
    own = scores[np.arange(len(right)), right][:, None]
    before = np.arange(scores.shape[1]) < right[:, None]
    return ((scores > own) | (before & (scores == own))).sum(axis=1)


def _places(asked: Asked, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    best = np.stack([(asked.questions @ one.children.T).max(axis=1) for one in asked.sections], axis=1)
    targets = np.stack([one.target for one in asked.sections])
    return {
        "compressor": _found(asked, params),
        "mean": _found(asked, None),
        "target": places_of(asked.questions @ targets.T, asked.right),
        "best_child": places_of(best, asked.right),
    }


def _found(asked: Asked, params: Mapping[str, np.ndarray] | None) -> Int[np.ndarray, " questions"]:
    return places_of(asked.questions @ _vectors(asked, params).T, asked.right)


def _distance(asked: Asked, vectors: Float[np.ndarray, "sections dim"]) -> float:
    targets = np.stack([one.target for one in asked.sections])
    return float(np.square(vectors - targets).sum(axis=1).mean())


def _vectors(asked: Asked, params: Mapping[str, np.ndarray] | None) -> Float[np.ndarray, "sections dim"]:
    """By a compressor of these parameters, or by the mean."""
    children = np.concatenate([one.children for one in asked.sections])
    num_tokens = np.concatenate([one.num_tokens for one in asked.sections])
    parent = np.repeat(np.arange(len(asked.sections)), [len(one.children) for one in asked.sections])
    if params is None:
        return mean_of_children(children, num_tokens, parent)
    return compress_parents(params, children, num_tokens, parent)
