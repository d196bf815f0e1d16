"""Planners choose the levels of documents to search for a question; and the search at those levels.

    ranked, planned = rank_levels(index, "Who has the key?", embed, constant(LevelRange(1, 3)))
    context = fill_levels(index.corpus, ranked, Budget(2_000))

A planner gets questions and the beginnings of the documents, and names a range of levels for each question. `constant`
always names the same range. A router predicts the evidence recall of every range that it knows, from the question's
vector or from the profile of a first cheap search:

    r = bias + weights^T ((x - mean) / scale)
    plan = argmax_i r_i   where   max_i r_i - r_fallback > margin,   else the fallback

The fallback is the best fixed range for the training questions, so a router that has learned nothing uses that.
Cost of a plan, in [0, 1] if no range costs more than the full one:

    cost = (tokens built for the range + tokens sent) / (tokens built for all levels + tokens sent then)

A profile sums up a first cheap search for a router, by the best scores of every level. For each level, the nodes that
represent it are ranked. With their scores s_1 >= s_2 >= ...:

    best      s_1
    mean      of s_1 .. s_5
    gap       s_1 - s_2, and s_1 - s_10
    spread    documents among the first 10, as a share of these
    overlap   of a level and the next finer one: 1 if the best node of one contains that of the other
    agree     1 if the best nodes of all levels are from one document
    question  ln(1 + words), share of words with a capital letter, 1 if there is a digit
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.tree.level_ranges import LevelRange, format_levels, parse_levels
from qrag_jax.names import FEATURES, FeaturesName
from qrag_jax.search.corpus import check_fingerprint, embed_texts
from qrag_jax.search.hybrid import Ranked, words_weight
from qrag_jax.search.levels.level_context import LevelRanked
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.llm_planner import PlansReading
from qrag_jax.types import Embed, Encoder, InputError, UsageError

NUM_BEST = 10  # of each level
_NUM_MEAN = 5
_OF_LEVEL = ("best", "mean", "gap_2", "gap_10", "spread")
_OF_QUESTION = ("words", "capitals", "digits")


def profile_names(levels: Sequence[str]) -> tuple[str, ...]:
    """Names of the numbers of a profile, from the names of the levels."""
    own = [f"{name}.{what}" for name in levels for what in _OF_LEVEL]
    return (*own, *(f"overlap.{coarse}.{fine}" for coarse, fine in pairwise(levels)), "agree", *_OF_QUESTION)


def score_profiles(
    index: LevelIndex, questions: Sequence[str], vectors: Float[np.ndarray, "questions dim"]
) -> Float[np.ndarray, "questions features"]:
    """The profile of every question, in the order of `profile_names(index.names)`.

    Args:
        index: searched once for each level and question.
        vectors: of the questions, by the encoder of the corpus.
    """
    rows = [_profile(index, question, vector) for question, vector in zip(questions, vectors, strict=True)]
    return np.array(rows, np.float64).reshape(len(rows), len(profile_names(index.names)))


def _profile(index: LevelIndex, question: str, vector: Float[np.ndarray, " dim"]) -> list[float]:
    levels = [LevelRange(level, level) for level in range(len(index.names))]
    found = [index.rank(question, vector, one, NUM_BEST) for one in levels]
    best = [int(ranked.ids[0]) for ranked in found]
    overlap = [float(_overlap(index, coarse, fine)) for coarse, fine in pairwise(best)]
    agree = float(len(np.unique(index.corpus.numbers_of(np.array(best)))) == 1)
    words = question.split()
    capitals = sum(word[0].isupper() for word in words) / max(1, len(words))
    digits = float(any(letter.isdigit() for letter in question))
    own = [value for ranked in found for value in _of_level(index, ranked)]
    return [*own, *overlap, agree, float(np.log1p(len(words))), capitals, digits]


def _of_level(index: LevelIndex, ranked: Ranked) -> list[float]:
    """The numbers of `_OF_LEVEL`; the last score is repeated for missing nodes."""
    scores = np.pad(ranked.scores, (0, NUM_BEST - len(ranked)), mode="edge")
    spread = len(np.unique(index.corpus.numbers_of(ranked.ids))) / len(ranked)
    return [scores[0], scores[:_NUM_MEAN].mean(), scores[0] - scores[1], scores[0] - scores[-1], spread]


def _overlap(index: LevelIndex, first: int, second: int) -> bool:
    nodes = index.corpus.nodes[first], index.corpus.nodes[second]
    (start, end), (begin, stop) = nodes[0].spans[0], nodes[1].spans[0]
    return nodes[0].document_id == nodes[1].document_id and start < stop and begin < end


# (questions, heads of the documents: their first 1,000 tokens) -> the range of each question.
Planner = Callable[[Sequence[str], Sequence[str]], Sequence[LevelRange]]
Tokens = int | float | np.ndarray
KIND = "router"  # in the metadata of a run
_FORMAT = 1
_ARRAYS = ("mean", "scale", "weights", "bias")


@dataclass(frozen=True)
class Router:
    """A linear router; see the module.

    Attributes:
        features: the kind of its input.
        names: of the levels, the coarsest first.
        ranges: that it chooses from.
        fallback: position of the fixed range among them.
        margin: least predicted gain that replaces the fallback; infinite never does.
        mean, scale: float64 [features] of the training questions.
        weights: float64 [features, ranges].
        bias: float64 [ranges].
        fingerprint: of the encoder of the questions and the corpus.
    """

    features: FeaturesName
    names: tuple[str, ...]
    ranges: tuple[LevelRange, ...]
    fallback: int
    margin: float
    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    fingerprint: str = ""


@dataclass(frozen=True)
class Planned:
    """The levels searched for a question.

    Attributes:
        levels: the range.
        num_vectors: number of vectors that ranked the nodes, without those of leaves scored for parts that are cut.
        built_tokens: tokens that the encoder reads for these levels.
        reading: calls of a language model for the plan, and rejected answers by reason; None for other planners.
    """

    levels: LevelRange
    num_vectors: int
    built_tokens: int
    reading: PlansReading | None = None


def rank_levels(
    index: LevelIndex,
    question: str,
    embed: Embed,
    planner: Planner,
    top_k: int | None = None,
    *,
    weight: float = 0.0,
    heads: Sequence[str] = (),
) -> tuple[LevelRanked, Planned]:
    """Ranks the nodes of the planned levels, with the scores of all leaves; also returns the plan.

    Args:
        planner: (questions, heads of the documents) -> the range of each.
        top_k: most nodes; None is all.
        weight: of the words, as in `LevelIndex.rank`.
        heads: of the documents (`document_heads`), for a planner that reads them.

    Raises:
        InputError: the vectors of the index come from another encoder.
    """
    if isinstance(embed, Encoder):
        check_fingerprint(index.corpus, embed.fingerprint, "the question")
    (levels,) = planner([question], heads)
    vector = embed_texts(embed, [question])[0]
    ranked = index.rank(question, vector, levels, top_k, weight=words_weight(question, embed, weight))
    planned = Planned(levels, index.num_vectors(levels), index.built_tokens(levels))
    return LevelRanked(ranked.ids, ranked.scores, index.leaf_scores(vector)), planned


def plan_cost(built: Tokens, sent: Tokens, full: Tokens) -> Tokens:
    """The cost of plans, see the module; 0 if the full range costs nothing."""
    return (built + sent) / np.where(full > 0, full, 1)


def predict_recall(router: Router, features: Float[np.ndarray, "n f"]) -> Float[np.ndarray, "n r"]:
    """`r` of the module for every question and range; not limited to [0, 1]."""
    if features.shape[1:] != router.mean.shape:
        raise InputError(
            f"router: reads {len(router.mean)} numbers of a question, got {features.shape[1]}; use the encoder and "
            "the levels that it was trained with"
        )
    return router.bias + ((features - router.mean) / router.scale) @ router.weights


def choose_ranges(
    predicted: Float[np.ndarray, "n r"], fallback: int | Int[np.ndarray, " n"], margin: float
) -> Int[np.ndarray, " n"]:
    """The position of the range of every question: the best one if its predicted gain exceeds the margin."""
    best, rows = predicted.argmax(axis=1), np.arange(len(predicted))
    gain = predicted[rows, best] - predicted[rows, fallback]
    return np.where(gain > margin, best, fallback)


def route(router: Router, features: Float[np.ndarray, "n f"]) -> Int[np.ndarray, " n"]:
    """Positions among the router's ranges of the range of every question."""
    return choose_ranges(predict_recall(router, features), router.fallback, router.margin)


def constant(levels: LevelRange) -> Planner:
    """The planner that always names one range."""
    return lambda questions, heads: [levels] * len(questions)


def make_planner(router: Router, index: LevelIndex, embed: Embed) -> Planner:
    """The planner of a router.

    Args:
        router: from `load_router` or `router_training.fit_router`.
        index: the index to search; a router on profiles first searches it once at each level.
    """
    if router.names != index.names:
        raise UsageError(
            f"router: trained on the levels {', '.join(router.names)}, but the index has {', '.join(index.names)}; "
            "train a router on these (qrag train router), or build an index with those levels"
        )
    check_fingerprint(index.corpus, router.fingerprint, "the router")

    def plan(questions: Sequence[str], heads: Sequence[str]) -> list[LevelRange]:
        vectors = embed_texts(embed, questions)
        features = vectors if router.features == "vectors" else score_profiles(index, questions, vectors)
        return [router.ranges[place] for place in route(router, features).tolist()]

    return plan


def save_router(router: Router, run: str | Path, config: Mapping[str, Any] | None = None) -> Path:
    """Writes a router as a run folder, complete or not at all."""
    from qrag_jax.checkpoint import save_checkpoint  # imports JAX, which nothing else here needs

    about = {
        "kind": KIND,
        "format": _FORMAT,
        "features": router.features,
        "names": list(router.names),
        "ranges": [format_levels(one, router.names) for one in router.ranges],
        "fallback": router.fallback,
        "margin": router.margin if np.isfinite(router.margin) else None,  # JSON has no infinity
        "fingerprint": router.fingerprint,
    }
    arrays = {name: np.asarray(getattr(router, name), np.float64) for name in _ARRAYS}
    return save_checkpoint(run, 0, {KIND: arrays}, dict(config or {}), metadata=about)


def load_router(run: str | Path) -> Router:
    """Loads the router of a run folder.

    Args:
        run: folder that `qrag train router --out` wrote.
    """
    from qrag_jax.checkpoint import load_checkpoint  # as in `save_router`

    if not Path(run).is_dir():
        raise UsageError(f"{run}: no such folder; give one that `qrag train router --out` wrote")
    saved = load_checkpoint(run, groups=lambda about: [KIND] if about.get("kind") == KIND else [])
    if saved.metadata.get("kind") != KIND:
        raise UsageError(f"{run}: not a router; give a folder that `qrag train router --out` wrote")
    return _checked(saved.arrays[KIND], saved.metadata, str(saved.folder))


def _checked(arrays: Mapping[str, Any], about: Mapping[str, Any], where: str) -> Router:
    """The router of values that may be anything."""
    try:
        if about["format"] != _FORMAT or about["features"] not in FEATURES:
            raise InputError(f"format {about['format']!r}, features {about['features']!r}: of another version")
        names = tuple(str(name) for name in about["names"])
        ranges = tuple(parse_levels(text, names) for text in about["ranges"])
        margin = np.inf if about["margin"] is None else float(about["margin"])
        router = Router(
            about["features"],
            names,
            ranges,
            int(about["fallback"]),
            margin,
            *(np.asarray(arrays[name], np.float64) for name in _ARRAYS),
            fingerprint=str(about.get("fingerprint", "")),
        )
        faults = list(_faults(router))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where}: damaged ({error}); copy it again, or train it again") from error
    if faults:
        raise InputError(f"{where}: damaged ({'; '.join(faults)}); copy it again, or train it again")
    return router


def _faults(router: Router) -> list[str]:
    num_features, num_ranges = len(router.mean), len(router.ranges)
    if router.features == "profiles" and num_features != len(profile_names(router.names)):
        return [f"{num_features} numbers of a profile, expected {len(profile_names(router.names))}"]
    shapes = {"mean": (num_features,), "scale": (num_features,), "weights": (num_features, num_ranges)}
    shapes["bias"] = (num_ranges,)
    faults = [f"{name} is not {list(shape)}" for name, shape in shapes.items() if getattr(router, name).shape != shape]
    faults += [f"{name} is not finite" for name in _ARRAYS if not np.isfinite(getattr(router, name)).all()]
    faults += ["scale is not positive"] if not (router.scale > 0).all() else []
    faults += [] if 0 <= router.fallback < num_ranges else [f"fallback {router.fallback} of {num_ranges} ranges"]
    return [*faults, *([] if router.margin >= 0 else [f"margin {router.margin}"])]
