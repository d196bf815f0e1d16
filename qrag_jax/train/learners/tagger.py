"""Training of the tagger: softmax regression for every strength of L2 and every held-out part, side by side.

The documents are dealt into parts. For every strength one tagger is trained without each part, and one on all of them,
all in the same updates: they read the same features, and are columns of one product. The strength and the threshold
are those with the best F1 on the parts that a tagger has not seen; the result is the tagger of that strength that was
trained on all parts. The estimated quality comes from parts whose strength and threshold were chosen on the other
parts alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.checkpoint import save_checkpoint
from qrag_jax.chunking.tree.boundaries import Point
from qrag_jax.config import to_dict
from qrag_jax.data.corpora.headed_documents import HeadedDocument
from qrag_jax.models.tagger.features import Gaps, fit_basis, principal_components, standardise, with_components
from qrag_jax.models.tagger.predict import points_of, probabilities, read_gaps, vectors_of
from qrag_jax.models.tagger.tagger import (
    KIND,
    NUM_CLASSES,
    NUM_LEVELS,
    Params,
    Tagger,
    describe_tagger,
    init,
    scores,
    tagger_arrays,
)
from qrag_jax.train.learners.fitting import deal_parts, documents_sha256, embedded_groups, run_updates
from qrag_jax.train.run_folder import open_log, open_runs
from qrag_jax.train.trainer import Hooks, Plan, Report
from qrag_jax.types import Embed, InputError, UsageError, check_fields

_NO_PART = -1  # the part of a tagger that is trained on all


@dataclass(frozen=True)
class TaggerConfig:
    """How a tagger is trained.

    Attributes:
        seed: of the parts and of the order of gaps.
        num_updates: optimiser steps.
        batch_size: gaps of an update, or all where there are fewer.
        learning_rate: of Adam, at first; it falls to 0 along a cosine.
        strengths: of L2 on the weights of features, half the sum of squares; one of them is chosen.
        cue_strengths: the same on the weights of cues; each is tried with each of the others.
        num_parts: that the documents are dealt into, at most as many as there are.
        log_every: updates between two lines of metrics.jsonl.
    """

    seed: int = 0
    num_updates: int = 400
    batch_size: int = 4096
    learning_rate: float = 0.01
    strengths: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    cue_strengths: tuple[float, ...] = (1e-4, 1e-3)
    num_parts: int = 5
    log_every: int = 20

    def __post_init__(self) -> None:
        least = {"num_parts": 2, "strengths": 0, "cue_strengths": 0}  # parts that are held out choose
        check_fields(self, positive=("num_updates", "batch_size", "log_every"), at_least=least)
        for name in ("strengths", "cue_strengths"):
            if not getattr(self, name):
                raise UsageError("give at least one", field=name)

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Strengths on features and on cues, each with each."""
        return [(one, cue) for one in self.strengths for cue in self.cue_strengths]


@dataclass(frozen=True)
class FittedTagger:
    """A tagger and its estimated quality.

    Attributes:
        tagger: trained on all documents.
        held_out: for each document the points that were found by a tagger which had not seen it, with a strength and a
            threshold that were chosen without it.
        strength: of L2 on features and on cues, that were chosen.
    """

    tagger: Tagger
    held_out: list[list[Point]]
    strength: tuple[float, float]


@dataclass(frozen=True)
class _Rows:
    """The gaps of all documents one after the other.

    Attributes:
        gaps: their features.
        classes: 0, or the level of the section that begins.
        documents: number of the document of each.
        parts: part of the document of each.
    """

    gaps: Gaps
    classes: Int[np.ndarray, " gaps"]
    documents: Int[np.ndarray, " gaps"]
    parts: Int[np.ndarray, " gaps"]


@dataclass(frozen=True)
class ReadDocument:
    """A document with everything that is derived from it alone.

    Attributes:
        document: with the points that are right.
        vectors: of its sentences, of length 1.
        gaps: of `text_gaps`.
    """

    document: HeadedDocument
    vectors: Float[np.ndarray, "sentences dim"]
    gaps: Gaps


def fit_tagger(
    documents: Sequence[HeadedDocument],
    embed: Embed,
    fingerprint: str,
    encoder: str,
    config: TaggerConfig | None = None,
    out: Path | None = None,
    report: Report | None = None,
) -> FittedTagger:
    """Trains a tagger on headed documents, in seconds once their sentences are embedded.

    Args:
        documents: at least two, with points behind their first sentences.
        embed: vectors of sentences.
        fingerprint: of that encoder.
        encoder: where it comes from, for those who load the tagger.
        config: how it is trained.
        out: run folder, which must not hold a run; None writes nothing.
        report: called with progress.

    Raises:
        UsageError: `out` holds a run or is in use.
        InputError: fewer than two documents, or no point in any behind its first sentence.
    """
    config = TaggerConfig() if config is None else config
    report = (lambda *_: None) if report is None else report
    check_trainable(documents)
    with open_runs([(out, None)]):
        read = read_documents(documents, embed, report)
        with open_log(out, describe_documents(documents), 0, tensorboard=False) as log:
            fitted = fit_read(read, fingerprint, encoder, config, Hooks(out, log), report)
        if out is not None:
            tagger = fitted.tagger
            arrays = {KIND: tagger_arrays(tagger)}
            save_checkpoint(out, config.num_updates, arrays, to_dict(config), metadata=describe_tagger(tagger))
        return fitted


def read_documents(
    documents: Sequence[HeadedDocument], embed: Embed, report: Report = lambda *_: None
) -> list[ReadDocument]:
    """Embeds the sentences of documents, and looks at each."""
    found: list[ReadDocument] = []
    for numbers in embedded_groups(documents, report):
        group = [documents[number] for number in numbers]
        vectors = vectors_of([one.text for one in group], embed)
        found += [ReadDocument(one, own, read_gaps(one.text, own)) for one, own in zip(group, vectors, strict=True)]
    return found


def fit_read(
    read: Sequence[ReadDocument],
    fingerprint: str,
    encoder: str,
    config: TaggerConfig,
    hooks: Hooks | None = None,
    report: Report = lambda *_: None,
) -> FittedTagger:
    """Trains a tagger on documents that were read; arguments as of `fit_tagger`."""
    documents = [one.document for one in read]
    check_trainable(documents)
    centre, components = principal_components([one.vectors for one in read])
    raw = [with_components(one.gaps, one.vectors, centre, components) for one in read]
    basis = fit_basis(raw, centre, components)
    gaps = [standardise(one, basis) for one in raw]
    parts = deal_parts([one.id for one in documents], config.num_parts, config.seed)
    rows = _joined(documents, gaps, parts)
    params = _train(rows, config, Hooks() if hooks is None else hooks, report)
    chosen, strength, threshold, held_out = _choose(params, documents, gaps, rows, parts, config)
    facts = describe_documents(documents) | {"strengths": list(strength)}
    return FittedTagger(Tagger(chosen, basis, threshold, fingerprint, encoder, facts), held_out, strength)


def check_trainable(documents: Sequence[HeadedDocument]) -> None:
    """Refuses documents that say nothing of sections."""
    number = len({one.id for one in documents})
    if number < 2:
        raise InputError(
            f"{number or 'no'} document has a heading; training needs 2, one to learn from and one to choose the "
            "threshold on: give more"
        )
    with_points = [one for one in documents if any(sentence for sentence, _ in one.points)]
    if len(with_points) < 2:
        raise InputError(
            "fewer than 2 documents have a section that begins after their first sentence: give documents with several"
        )


def describe_documents(documents: Sequence[HeadedDocument]) -> dict[str, Any]:
    """The training data of a tagger: sizes, and a digest of ids, texts and boundaries."""
    return {
        "num_documents": len(documents),
        "num_sentences": sum(len(one.text) for one in documents),
        "num_points": sum(len(one.points) for one in documents),
        "data_sha256": documents_sha256(documents),
    }


def _joined(documents: Sequence[HeadedDocument], gaps: Sequence[Gaps], parts: np.ndarray) -> _Rows:
    classes = [gold_classes(one) for one in documents]
    numbers = np.repeat(np.arange(len(gaps)), [len(one) for one in classes])
    features, cues = (np.concatenate(columns) for columns in zip(*gaps, strict=True))
    return _Rows(Gaps(features, cues), np.concatenate(classes), numbers, parts[numbers])


def gold_classes(document: HeadedDocument) -> Int[np.ndarray, " gaps"]:
    """The class of each gap: 0, or the level of the section that begins behind it, 3 for deeper ones."""
    classes = np.zeros(len(document.text), np.int32)
    for sentence, level in document.points:
        classes[sentence] = min(level, NUM_LEVELS)
    return classes[1:]


# --- updates ---------------------------------------------------------------------------------------------------------


def _taggers(parts: np.ndarray, config: TaggerConfig) -> tuple[np.ndarray, np.ndarray]:
    """The part that each tagger does not see, and its strengths on features and cues, [taggers, 2]."""
    unseen = [*range(int(parts.max()) + 1), _NO_PART]
    found = [(part, *pair) for pair in config.pairs for part in unseen]
    return np.array([part for part, *_ in found]), np.array([pair for _, *pair in found], np.float32)


def tagging_losses(
    params: Params,
    features: Float[Array, "gaps features"],
    cues: Int[Array, "gaps cues"],
    classes: Int[Array, " gaps"],
    seen: Bool[Array, "gaps taggers"],
    strengths: Float[Array, "taggers 2"],
) -> Float[Array, " taggers"]:
    """The loss of each tagger over the gaps that it sees.

        L_m = - mean over gaps seen by m of log p_m(class) + s_m / 2 |W_m|^2 + t_m / 2 |C_m|^2

    Args:
        params: columns are those of all taggers, classes of one side by side.
        seen: which gaps a tagger is trained on.
        strengths: s_m and t_m of each, of L2 on the weights of features W and of cues C.
    """
    number = strengths.shape[0]
    by_tagger = scores(params, features, cues).reshape(-1, number, NUM_CLASSES)
    right = jax.nn.log_softmax(by_tagger)[jnp.arange(len(classes)), :, classes]
    weight = seen.astype(right.dtype)
    fit = -(right * weight).sum(axis=0) / jnp.maximum(weight.sum(axis=0), 1)
    squares = lambda name: jnp.square(params[name]).reshape(-1, number, NUM_CLASSES).sum(axis=(0, 2))  # noqa: E731
    return fit + strengths[:, 0] / 2 * squares("weights") + strengths[:, 1] / 2 * squares("cues")


def _train(rows: _Rows, config: TaggerConfig, hooks: Hooks, report: Report) -> Params:
    """The parameters of all taggers, columns side by side, on the host."""
    unseen, strengths = _taggers(rows.parts, config)
    size = min(config.batch_size, len(rows.classes))
    optimiser = optax.adam(optax.cosine_decay_schedule(config.learning_rate, config.num_updates))
    pool = jax.device_put((rows.gaps.features, rows.gaps.cues, rows.classes, rows.parts))

    def total(params: Params, pool: Any, chosen: Array) -> tuple[Array, dict[str, Array]]:
        features, cues, classes, parts = (column[chosen] for column in pool)
        seen = parts[:, None] != unseen[None, :]
        losses = tagging_losses(params, features, cues, classes, seen, jnp.asarray(strengths))
        return losses.sum(), {"loss": losses.mean()}

    def batch(number: int) -> np.ndarray:
        order = np.random.default_rng([config.seed, 2, number]).permutation(len(rows.classes))
        return order[:size].astype(np.int32)

    params = init(rows.gaps.features.shape[1], len(strengths) * NUM_CLASSES)
    plan = Plan(config.num_updates, config.log_every, config.num_updates)
    return run_updates(params, optimiser, total, batch, plan, hooks, report, pool)


# --- choice ----------------------------------------------------------------------------------------------------------


def _choose(
    params: Params,
    documents: Sequence[HeadedDocument],
    gaps: Sequence[Gaps],
    rows: _Rows,
    parts: np.ndarray,
    config: TaggerConfig,
) -> tuple[Params, tuple[float, float], float, list[list[Point]]]:
    """(parameters, strengths, threshold, points of documents that were held out)."""
    num_parts = int(parts.max()) + 1
    columns = np.arange(len(config.pairs) * (num_parts + 1)).reshape(-1, num_parts + 1)  # as `_taggers` has them
    by_pair = [_held_out(params, gaps, parts, own[:num_parts].tolist()) for own in columns]
    begins = rows.classes > 0

    def best(kept: np.ndarray) -> tuple[int, float]:
        found = [best_threshold(1 - np.concatenate(own)[kept, 0], begins[kept]) for own in by_pair]
        number = max(range(len(found)), key=lambda i: found[i][0])
        return number, found[number][1]

    held_out: list[list[Point]] = [[] for _ in documents]
    for part in range(num_parts):
        number, threshold = best(rows.parts != part)
        for i in np.flatnonzero(parts == part).tolist():
            held_out[i] = points_of(by_pair[number][i], threshold)
    number, threshold = best(np.ones(len(begins), bool))
    return _one(params, int(columns[number, -1])), config.pairs[number], threshold, held_out


def _one(params: Params, number: int) -> Params:
    """The parameters of one tagger."""
    return {name: np.ascontiguousarray(x[..., number * NUM_CLASSES :][..., :NUM_CLASSES]) for name, x in params.items()}


def _held_out(
    params: Params, gaps: Sequence[Gaps], parts: np.ndarray, columns: Sequence[int]
) -> list[Float[np.ndarray, "_ classes"]]:
    """Probabilities of each document by the tagger that does not see its part."""
    found: list[Any] = [None] * len(gaps)
    for part, column in enumerate(columns):
        members = np.flatnonzero(parts == part).tolist()
        its = probabilities(_one(params, column), [gaps[i] for i in members])
        for i, rows in zip(members, its, strict=True):
            found[i] = rows
    return found


def best_threshold(probability: Float[np.ndarray, " gaps"], begins: Bool[np.ndarray, " gaps"]) -> tuple[float, float]:
    """The threshold with the best F1 of `probability > threshold`, and that F1; (F1, threshold).

        F1 = 2 right / (predicted + there)

    It is the middle between two probabilities; of equally good ones, the highest. Without any boundary it is 0.5.
    """
    order = np.argsort(-probability, kind="stable")
    sorted_, right = probability[order].astype(np.float64), np.cumsum(begins[order])
    there = int(begins.sum())
    if not there:
        return 0.0, 0.5
    f1 = 2 * right / (np.arange(1, len(order) + 1) + there)
    following = np.append(sorted_[1:], 0.0)
    f1[sorted_ <= following] = 0  # no threshold separates equal ones
    last = int(f1.argmax())
    middle = (sorted_[last] + following[last]) / 2
    return float(f1[last]), float(np.clip(middle, 1e-6, 1 - 1e-6))
