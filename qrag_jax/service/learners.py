"""Trains small models on vectors of documents: taggers, compressors and routers.

Each returns the row that `qrag train KIND --json` prints: the result, and the quality to expect.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qrag_jax.annotate.summaries import SummariesConfig
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.chunking.tree.level_ranges import all_ranges, format_levels, full_range
from qrag_jax.chunking.tree.parent_vectors import FromTexts
from qrag_jax.config import is_override, load_config, to_dict
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.data.questions.pairs import read_pairs
from qrag_jax.errors import Arg
from qrag_jax.eval.study.cells.level_cells import run_levels
from qrag_jax.eval.study.cells.run_cell import Tools, embed_questions
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.eval.study.cells.study_encoder import load_study_encoder
from qrag_jax.eval.study.config import DefaultStudy, StudyConfig
from qrag_jax.eval.study.load_tasks import load_task
from qrag_jax.eval.study.records import LevelCell
from qrag_jax.eval.tables import share
from qrag_jax.files.whole_file import write_json
from qrag_jax.index.parent_texts import text_parents
from qrag_jax.llm.config import LlmConfig, make_generator
from qrag_jax.measures.aggregate import mean_interval, paired_difference
from qrag_jax.measures.boundary_scores import Judged, score_points
from qrag_jax.models.encoder.classifier import has_classifier, load_classifier, new_classifier, save_classifier
from qrag_jax.models.encoder.embedder import TextEmbedder, make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.names import (
    CHUNKERS,
    COMPRESSOR_KINDS,
    COMPRESSOR_LOSSES,
    CompressorKind,
    CompressorLoss,
    FeaturesName,
    RouterMethod,
    View,
)
from qrag_jax.search.corpus import ReportProgress
from qrag_jax.search.levels.plan_labels import PlanLabels, cheapest_ranges
from qrag_jax.search.levels.planners import plan_cost
from qrag_jax.search.levels.router import save_router
from qrag_jax.search.levels.router_training import FittedRouter, fit_best_router
from qrag_jax.train.kind import LearnerKind
from qrag_jax.train.learners.compressor import TOP_K, CompressorConfig, FittedCompressor, fit_compressor, recalls
from qrag_jax.train.learners.compressor_data import make_lead_targets
from qrag_jax.train.learners.reranker import RerankerConfig, fit_reranker
from qrag_jax.train.learners.tagger import TaggerConfig, fit_tagger
from qrag_jax.train.run_folder import check_out, open_log, open_runs
from qrag_jax.train.trainer import Hooks
from qrag_jax.types import NOBODY, InputError, UsageError, Watch

_LORA_RATE = 5e-4
_SUMMARY_TOKENS = 128  # of an answer; and of a lead


@dataclass(frozen=True)
class TaggerRequest:
    """A tagger to train.

    Attributes:
        paths: documents with headings: files, folders, `scisumm:PATH` or `wikitext2:PATH`.
        view: how much of the headings it sees.
        encoder: makes the vectors that it reads.
        seed: of the folds and the order of gaps.
    """

    paths: tuple[str, ...]
    view: View = "removed"
    encoder: str = "minilm"
    seed: int = 0


@dataclass(frozen=True)
class CompressorRequest:
    """A compressor to train.

    Attributes:
        paths: documents with headings, as for a tagger.
        kind: of the network; None tries all.
        loss: to minimise; None tries both.
        target: the vectors to learn: `windows`, `lead` or `summary`.
        lead_tokens: for target lead, tokens at the beginning of a section.
        encoder: makes the vectors that it reads.
        seed: of all random draws.
        llm: for target summary, the model that writes summaries.
    """

    paths: tuple[str, ...]
    kind: CompressorKind | None = None
    loss: CompressorLoss | None = None
    target: str = "windows"
    lead_tokens: int = _SUMMARY_TOKENS
    encoder: str = "minilm"
    seed: int = 0
    llm: LlmConfig = field(default_factory=lambda: LlmConfig(max_answer_tokens=_SUMMARY_TOKENS))


@dataclass(frozen=True)
class RouterRequest:
    """A router to train.

    Attributes:
        config: of a study, with tasks that have evidence.
        overrides: changes of the config, `field=value`.
        budget: tokens of a context.
        features: what it reads of a question; None: the better ones on held-out questions.
        method: regression (of the evidence recall of every range) or classifier (of the best range).
        seed: of the folds.
    """

    config: str
    overrides: tuple[str, ...] = ()
    budget: int = 512
    features: str | None = None
    method: RouterMethod = "regression"
    seed: int = 0


@dataclass(frozen=True)
class RerankerRequest:
    """A reranker to train.

    Attributes:
        paths: files of questions with passages (`data.questions.pairs`).
        model: an encoder, which gets a new head, or a reranker to go on with.
        epochs, learning_rate, lora_rank, seed: as in `RerankerConfig`; a learning rate of None is 5e-5, with LoRA 5e-4.
    """

    paths: tuple[str, ...]
    model: str = "minilm"
    epochs: int = 2
    learning_rate: float | None = None
    lora_rank: int = 0
    seed: int = 0


def train_reranker(request: RerankerRequest, out: Path, watch: Watch = NOBODY) -> dict[str, Any]:
    """Trains a reranker and writes it as a model folder, which `--rerank` and sentence-transformers' CrossEncoder load.

    Args:
        out: folder to write.

    Returns:
        The row of the result, with the share of held-out questions whose positive passage stands first.
    """
    check_out(out, resumes=False)
    if (out / "config.json").exists():
        raise UsageError("already contains a model", file=out, remedy=(": choose another ", Arg("out")))
    groups = read_pairs(request.paths)
    watch.note(f"{len(groups):,} questions with passages")
    config = RerankerConfig(
        request.seed,
        request.epochs,
        request.learning_rate or (_LORA_RATE if request.lora_rank else RerankerConfig.learning_rate),
        lora_rank=request.lora_rank,
    )
    if has_classifier(request.model):
        start = load_classifier(request.model)
    else:
        start = new_classifier(load_encoder(request.model), jax.random.key(request.seed))
    began = time.perf_counter()
    with open_runs([(out, None)]), open_log(out, to_dict(config), 0, tensorboard=False) as log:
        fitted = fit_reranker(groups, start, config, Hooks(out, log), watch.report)
        save_classifier(out, fitted.classifier)
        expected = mean_interval(fitted.first, seed=request.seed)
        row = {
            "model": request.model,
            "n_questions": fitted.num_groups,
            "n_passages_cut": fitted.num_cut,
            "held_out_questions": expected.n,
            "first": expected.mean,
            "low": expected.low,
            "high": expected.high,
            "first_before": float(fitted.first_before.mean()),
            "seconds": time.perf_counter() - began,
        }
        write_json(out / "results.json", {**row, "config": to_dict(config)}, indent=1)
    return row


def train_tagger(request: TaggerRequest, out: Path, watch: Watch = NOBODY) -> dict[str, Any]:
    """Trains a tagger on documents with headings.

    Args:
        out: run folder to write.

    Returns:
        The row of the result, with held-out F1.
    """
    check_out(out, resumes=False)
    documents = read_headed(request.paths, request.view)
    watch.note(f"{len(documents):,} documents, {_num_points(documents):,} sections")
    embedder = make_embedder(load_encoder(request.encoder))
    start = time.perf_counter()
    config = TaggerConfig(request.seed)
    fitted = fit_tagger(documents, embedder, embedder.fingerprint, request.encoder, config, out, watch.report)
    seconds = time.perf_counter() - start
    rows = zip(documents, fitted.held_out, strict=True)  # boundaries by taggers that did not see the document
    score = score_points([Judged(len(one.text), one.points, found) for one, found in rows], seed=request.seed)
    f1 = score.f1_any
    return {
        "view": request.view,
        "f1_l1": score.f1[1],
        "f1_l2": score.f1[2],
        "f1_any": f1.mean,
        "low": f1.low,
        "high": f1.high,
        "n_documents": f1.n,
        "n_points": score.n_points,
        "threshold": fitted.tagger.threshold,
        "strength": fitted.strength,
        "seconds": seconds,
    }


def train_compressor(request: CompressorRequest, out: Path, watch: Watch = NOBODY) -> dict[str, Any]:
    """Trains a compressor on documents with headings.

    Args:
        out: run folder to write.

    Returns:
        The row of the result, with held-out recall.

    Raises:
        UsageError: options of a language model without target summary.
    """
    check_out(out, resumes=False)
    if request.target != "summary" and (given := request.llm.given()):
        belongs = ("works only with ", Arg("target", "summary"), "; choose that target, or drop this option")
        raise UsageError(belongs, field=given[0])
    documents = read_headed(request.paths)
    watch.note(f"{len(documents):,} documents, {_num_points(documents):,} headings")
    embedder = make_embedder(load_encoder(request.encoder))
    config = CompressorConfig(
        request.seed,
        kinds=COMPRESSOR_KINDS if request.kind is None else (request.kind,),
        losses=COMPRESSOR_LOSSES if request.loss is None else (request.loss,),
    )
    start = time.perf_counter()
    fitted = fit_compressor(
        documents,
        embedder,
        embedder.count_tokens,
        _targets(request, embedder, watch),
        embedder.fingerprint,
        request.encoder,
        config,
        out,
        watch.report,
    )
    row = _describe_compressor(fitted, request.seed) | {"seconds": time.perf_counter() - start}
    return {"target": request.target, **row}


def train_router(request: RouterRequest, out: Path, watch: Watch = NOBODY) -> dict[str, Any]:
    """Trains a router of levels on the questions of a study.

    Args:
        out: run folder to write.

    Returns:
        The row of the result, with held-out evidence recall.

    Raises:
        UsageError: an override that is not `field=value`.
        InputError: no task has evidence.
    """
    check_out(out, resumes=False)
    if wrong := [word for word in request.overrides if not is_override(word)]:
        raise UsageError(f"{wrong[0]}: give one config; change a field with field=value, such as data=DATA")
    config = load_config(DefaultStudy, request.config, request.overrides)
    tasks = _load_tasks(config, watch)
    encoder = load_study_encoder(config.model, config.window)
    split = make_splitter(config.splitter, config.language)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tools = Tools(encoder, SentenceCache(Path(folder)), split)
        vectors = [embed_questions(task.questions, tools) for task in tasks]
        told, budget = watch.stage("levels"), request.budget
        cells = [_cell(config, task, own, budget, tools, told) for task, own in zip(tasks, vectors, strict=True)]
    fitted = _fit(cells, vectors, tasks, request, encoder.fingerprint)
    how = {"budget": request.budget, "method": request.method, "seed": request.seed, "study": to_dict(config)}
    save_router(fitted.router, out, how)
    router, labels = fitted.router, [_labels(cell) for cell in cells]
    return {
        "features": router.features,
        "method": request.method,
        "levels": list(router.names),
        "budget": request.budget,
        "n": fitted.n,
        "n_labelled": sum(one is not None for own in labels for one in own.ranges),
        "n_dropped": sum(sum(own.dropped.values()) for own in labels),
        "fallback": format_levels(router.ranges[router.fallback], router.names),
        "leaves_fallback": bool(np.isfinite(router.margin)),
        "strength": fitted.strength,
        "erec_held_out": fitted.held_out,
        "erec_fallback": fitted.fallback_held_out,
        "seconds": time.perf_counter() - start,
    }


def _describe_compressor(fitted: FittedCompressor, seed: int) -> dict[str, Any]:
    """The chosen compressor, and its expected quality with 95% intervals over questions."""
    hits = {name: (places < TOP_K).astype(float) for name, places in fitted.places.items()}
    expected = mean_interval(hits["compressor"], seed=seed)
    over_mean = paired_difference(hits["compressor"], hits["mean"], seed=seed)
    row: dict[str, Any] = {
        "kind": fitted.chosen.kind,
        "loss": fitted.chosen.loss,
        "strength": fitted.chosen.strength,
        "n_documents": fitted.compressor.trained_on["num_documents"],
        "n_sections": fitted.compressor.trained_on["num_sections"],
        "held_out_sections": fitted.num_sections,
        "held_out_questions": expected.n,
        "r5": expected.mean,
        "low": expected.low,
        "high": expected.high,
        "r5_over_mean": over_mean.mean,
        "over_mean_low": over_mean.low,
        "over_mean_high": over_mean.high,
    }
    row |= {
        f"{name}_r{k}": value for name in hits for k, value in zip((1, 5), recalls(fitted.places[name]), strict=True)
    }
    row |= {f"{name}_squared_distance": value for name, value in fitted.squared_distance.items()}
    tried = ((one.kind, one.loss, one.strength, *recall) for one, recall in fitted.tried.items())
    return row | {"tried": [dict(zip(("kind", "loss", "strength", "r1", "r5"), one, strict=True)) for one in tried]}


def _level_config(config: StudyConfig) -> ChunkConfig:
    """The first config of strategy levels of a study, or levels by headings."""
    configs = [one for own in config.strategies.values() for one in own if one.strategy in CHUNKERS.choices("levels")]
    return configs[0] if configs else ChunkConfig("levels")


def _num_points(documents: Sequence[HeadedDocument]) -> int:
    return sum(len(one.points) for one in documents)


def _targets(request: CompressorRequest, embedder: TextEmbedder, watch: Watch) -> FromTexts:
    if request.target == "lead":
        return make_lead_targets(embedder, embedder.count_tokens, request.lead_tokens)
    llm = request.llm
    parents = text_parents(
        request.target,
        embedder,
        embedder.count_tokens,
        window_tokens=embedder.window,
        generator=make_generator(llm) if request.target == "summary" else None,
        summaries=SummariesConfig(llm.max_answer_tokens, llm.sampling, llm.prompts),
        progress=watch.answered,
    )
    assert parents.of_texts is not None
    return parents.of_texts


def _load_tasks(config: StudyConfig, watch: Watch) -> list[StudyTask]:
    split = make_splitter(config.splitter, config.language)
    tasks = [load_task(name, how, config.data, config.seed, split) for name, how in config.tasks.items()]
    found = [task for task in tasks if task.kind == "evidence"]
    if not found:
        raise InputError(f"tasks {', '.join(config.tasks)}: none has evidence, but a router needs it; add such a task")
    for task in found:
        watch.note(f"{task.name}: {len(task.questions):,} questions about {len(task.documents):,} documents")
    return found


def _cell(
    config: StudyConfig, task: StudyTask, vectors: np.ndarray, budget: int, tools: Tools, told: ReportProgress
) -> LevelCell:
    scope = config.tasks[task.name].scope
    how, way = _level_config(config), config.parents[0]
    (cell,) = run_levels("levels", 0, how, way, {"test": task}, scope, (budget,), tools, {"test": vectors}, told)
    return cell


def _fit(
    cells: Sequence[LevelCell],
    vectors: Sequence[np.ndarray],
    tasks: Sequence[StudyTask],
    request: RouterRequest,
    fingerprint: str,
) -> FittedRouter:
    """The router on the requested features, or on those with the higher held-out recall."""
    known: dict[FeaturesName, np.ndarray] = {
        "vectors": np.concatenate(vectors),
        "profiles": np.concatenate([np.array(cell.profiles) for cell in cells]),
    }
    recall = np.concatenate([np.array(cell.recall)[:, :, 0] for cell in cells])
    groups = [f"{task.name}/{question.relevant[0]}" for task in tasks for question in task.questions]
    if request.features is not None:
        known = {kind: own for kind, own in known.items() if kind == request.features}
    how = {"names": cells[0].names, "fingerprint": fingerprint, "seed": request.seed, "method": request.method}
    return fit_best_router(known, recall, groups, **how)


def _labels(cell: LevelCell) -> PlanLabels:
    """The cheapest range for each question that contains its evidence."""
    ranges, sent, built = all_ranges(cell.names), np.array(cell.sent)[:, :, 0], np.array(cell.built_tokens)
    full = ranges.index(full_range(cell.names))
    cost = plan_cost(built, sent, built[full] + sent[:, full : full + 1])
    return cheapest_ranges(np.array(cell.recall)[:, :, 0], np.asarray(cost), ranges)


def _format_tagger(row: Mapping[str, Any]) -> str:
    interval = f"{share(row['f1_any'])} [{share(row['low'])}, {share(row['high'])}]"
    return (
        f"trained: {row['run']}, {row['seconds']:,.0f} s\n"
        f"held out, headings {row['view']}: F1 {interval} of all boundaries, {share(row['f1_l1'])} of level 1, "
        f"{share(row['f1_l2'])} of level 2; {row['n_documents']:,} documents, {row['n_points']:,} boundaries"
    )


def _format_compressor(row: Mapping[str, Any]) -> str:
    interval = f"{share(row['r5'])} [{share(row['low'])}, {share(row['high'])}]"
    over = (
        f"{share(row['r5_over_mean'], sign='+')} [{share(row['over_mean_low'], sign='+')}, "
        f"{share(row['over_mean_high'], sign='+')}]"
    )
    how = f"{row['kind']} by {row['loss']}, {row['n_sections']:,} sections, {row['seconds']:,.0f} s"
    return (
        f"trained: {row['run']}, {how}\n"
        f"held out: R@5 {interval} of {row['held_out_questions']:,} sentences among {row['held_out_sections']:,} "
        f"sections; {over} over the mean of the children\n"
        f"compared with: mean {share(row['mean_r5'])}, target {share(row['target_r5'])}, best child "
        f"{share(row['best_child_r5'])}"
    )


def _format_router(row: Mapping[str, Any]) -> str:
    lines = [
        f"trained: {row['run']}, {row['seconds']:,.0f} s, {row['method']} on {row['features']}",
        f"held out: ERec {share(row['erec_held_out'])} at {row['budget']:,} tokens, best fixed range "
        f"{share(row['erec_fallback'])}; {row['n']:,} questions",
        f"labels: {row['n_labelled']:,} questions, {row['n_dropped']:,} dropped because no context contains their "
        "evidence",
    ]
    if not row["leaves_fallback"]:
        lines.append(f"no gain on held-out questions, so the router always searches {row['fallback']}")
    return "\n".join(lines)


def _format_reranker(row: Mapping[str, Any]) -> str:
    cut = f"; {row['n_passages_cut']:,} passages were cut" if row["n_passages_cut"] else ""
    return (
        f"trained: {row['run']}, {row['n_questions']:,} questions, {row['seconds']:,.0f} s{cut}\n"
        f"held out: the right passage first for {share(row['first'])} [{share(row['low'])}, {share(row['high'])}] of "
        f"{row['held_out_questions']:,} questions; {share(row['first_before'])} before training"
    )


RERANKER = LearnerKind(RerankerRequest, train_reranker, _format_reranker)
TAGGER = LearnerKind(TaggerRequest, train_tagger, _format_tagger)
COMPRESSOR = LearnerKind(CompressorRequest, train_compressor, _format_compressor)
ROUTER = LearnerKind(RouterRequest, train_router, _format_router)
