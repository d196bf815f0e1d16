"""Scores a trained retriever and its baselines on questions with gold chunks, and answers by a language model.

Facts are scored first, because they cost nothing. Answers take long, cost money and may fail.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from qrag_jax.data.corpora.beir import NOT_ASKED, read_beir, whole_judgements
from qrag_jax.data.questions.examples import read_examples
from qrag_jax.data.questions.multihop import READERS, describe
from qrag_jax.data.questions.vector_task import read_vector_task
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.haystack import Haystack, held_back_haystack
from qrag_jax.eval.answers.answering import (
    Answered,
    Reader,
    check_reader,
    choose_measures,
    needs_judges,
    read_answers,
)
from qrag_jax.eval.retrieval.compare import Comparison, compare
from qrag_jax.eval.retrieval.score import Options, Scored, check_protocols, open_run, score
from qrag_jax.llm.config import LlmConfig, make_generator
from qrag_jax.llm.wrappers import WatchedGenerator
from qrag_jax.qrag.long_contexts import is_long
from qrag_jax.qrag.tasks import Task, corpus_task, examples_task, hidden_stories_tasks, vectors_task
from qrag_jax.types import NOBODY, Arg, InputError, TextGenerator, UsageError, Watch

LENGTH_FACTORS = (1, 4, 16, 64)
FEWEST_SENTENCES = 20_000  # of a haystack, unless other numbers are given
MOST_DOCUMENTS = 200_000  # of a BEIR folder
MOST_PAIRS = 100_000_000  # of a question and a document that it searches; about 3 GB


@dataclass(frozen=True)
class QuestionSource:
    """Questions with gold chunks.

    Attributes:
        kind: `babi` (hidden in a haystack), `jsonl`, `vectors`, `beir`, or a set of `multihop.READERS`.
        path: file of the questions; for vectors, their folder; for beir, the folder, or one of its qrels files instead
            of `qrels/test.tsv`.
        haystack: for babi, text to hide facts in.
        max_haystack_sentences: most sentences of the haystack; None: 20,000, and for contexts that are scored in blocks
            as many as a context has chunks.
        num_chunks: for babi, lengths of contexts in chunks; None: `LENGTH_FACTORS` times the training length.
    """

    kind: str
    path: str
    haystack: str = "sotu"
    max_haystack_sentences: int | None = None
    num_chunks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class AnswersRequest:
    """Answers to score in addition to the facts.

    Attributes:
        llm: the model that answers.
        measures: of answers; None: EM and F1, and further ones for some kinds of questions.
        judges: models that judge, as `llm_model`; None: the model that answers.
        bounds: also answer from the gold chunks only, and from no chunks.
    """

    llm: LlmConfig = field(default_factory=LlmConfig)
    measures: tuple[str, ...] | None = None
    judges: tuple[str, ...] | None = None
    bounds: bool = False


@dataclass(frozen=True)
class EvalRequest:
    """A run to score.

    Attributes:
        run: folder of the run.
        source: of the questions.
        options: the rows to compute.
        calibrate: file of other questions of the same kind, to fit the thresholds of all methods.
        answers: to score too; None scores facts only.
    """

    run: str
    source: QuestionSource
    options: Options = field(default_factory=Options)
    calibrate: str | None = None
    answers: AnswersRequest | None = None


@dataclass(frozen=True)
class Evaluated:
    """The result of an evaluation.

    Attributes:
        request: the request.
        tasks: the questions, one task for each length.
        scored: rows and records of facts.
        reader: loaded models for answers; None if none were requested.
    """

    request: EvalRequest
    tasks: Sequence[Task]
    scored: Scored
    reader: Reader | None


def evaluate_facts(request: EvalRequest, watch: Watch = NOBODY) -> Evaluated:
    """Scores the chunks that the methods choose. Loads the language models first, to report their errors early."""
    trained = open_run(request.run)
    check_protocols(request.options, trained, calibrated=bool(request.calibrate))
    source, training_chunks = request.source, trained.labels.training_chunks
    tasks = list(report_tasks(source, training_chunks, trained.data, watch))
    if source.kind == "beir":
        _check_size(tasks[0], request.options.num_questions)
    reader = None if request.answers is None else make_reader(request.answers, source.kind, tasks, watch)
    held_out = None
    if request.calibrate:
        held_out = _calibration_task(request.calibrate, source, training_chunks, trained.data, watch)
    return Evaluated(request, tasks, score(trained, tasks, request.options, held_out, watch), reader)


def evaluate_answers(evaluated: Evaluated, watch: Watch = NOBODY) -> Answered:
    """Asks the language model to answer from the chunks that each method chose, and scores the answers."""
    request = evaluated.request
    assert evaluated.reader is not None and request.answers is not None
    bounds = request.options if request.answers.bounds else None
    return read_answers(_watched(evaluated.reader, watch), evaluated.tasks, evaluated.scored.records, bounds)


def compare_methods(evaluated: Evaluated, answered: Answered | None = None) -> list[Comparison]:
    """Paired tests between the methods for each task, then for their answers."""
    pairs = zip(evaluated.tasks, evaluated.scored.records, strict=True)
    found = [comparison for task, own in pairs for comparison in compare(task.name, own)]
    return found + list(answered.comparisons if answered is not None else ())


def report_tasks(
    source: QuestionSource, training_chunks: int, trained_on: Mapping[str, Any], watch: Watch
) -> Iterator[Task]:
    """The questions to score, one task for each length.

    Args:
        training_chunks: context length of the training, in chunks.
        trained_on: the `data` section of the run's config.

    Raises:
        UsageError: `num_chunks` for questions that have their own chunks, or with a length twice.
    """
    if source.kind != "babi" and source.num_chunks:
        own = (" works only with ", Arg("babi"), "; questions of ", Arg(source.kind), " have their own chunks")
        raise UsageError((Arg("num_chunks"), *own), field="num_chunks")
    if source.kind != "babi":
        yield _task_with_chunks(source.kind, source.path, watch)
        return
    haystack = _haystack(source, trained_on, watch)
    if len(haystack) == _most_sentences(source):
        used = f"haystack {source.haystack}: only {len(haystack):,} of its sentences are used; raise "
        watch.note((used, Arg("max_haystack_sentences"), " to use more"))
    lengths = source.num_chunks or tuple(factor * training_chunks for factor in LENGTH_FACTORS)
    if len(set(lengths)) != len(lengths):
        given = ",".join(map(str, lengths))
        raise UsageError((Arg("num_chunks", given), ": contains a length twice"), field="num_chunks", value=lengths)
    yield from hidden_stories_tasks(_name(source.path), read_babi(source.path), haystack, lengths)


def make_reader(answers: AnswersRequest, kind: str, tasks: Sequence[Task], watch: Watch = NOBODY) -> Reader:
    """Loads the language models for answers.

    Args:
        kind: of the questions, as in `QuestionSource`.

    Raises:
        UsageError: questions without text, or judges without a measure that they judge.
        InputError: questions without reference answers.
    """
    if kind == "vectors":
        raise UsageError("a language model needs texts, but questions over vectors have none", field="answers")
    for task in tasks:
        if task.answers is None:
            raise InputError(f'{task.name}: no question has a reference answer; give each one a field "answer"')
    llm = answers.llm
    measures = tuple(choose_measures(task, answers.measures, kind, llm.prompts, watch.note) for task in tasks)
    judged = needs_judges(measures)
    if answers.judges and not judged:
        named = Arg("answer_measures", "claims or judge")
        raise UsageError(("no measure needs judges; add ", named), field="judges")
    check_reader(measures, llm.prompts)
    generator = make_generator(llm)
    judges = _judges(answers, generator) if judged else ()
    return Reader(generator, measures, judges, llm.sampling, llm.prompts)


def _judges(answers: AnswersRequest, generator: TextGenerator) -> tuple[TextGenerator, ...]:
    """One model for each name, with the settings of the answering model; without names, that model itself."""
    llm = answers.llm
    return tuple(
        generator if name == llm.llm_model else make_generator(replace(llm, llm_model=name))
        for name in answers.judges or (llm.llm_model,)
    )


def _watched(reader: Reader, watch: Watch) -> Reader:
    """The reader with models that report progress, each as its own stage."""
    judges = reader.judges
    names = ["judge"] if len(judges) == 1 else [f"judge {number + 1}" for number in range(len(judges))]
    told = [partial(watch.answered, name) for name in ("answers", *names)]
    return replace(
        reader,
        generator=WatchedGenerator(reader.generator, told[0]),
        judges=tuple(WatchedGenerator(judge, tell) for judge, tell in zip(judges, told[1:], strict=True)),
    )


def _calibration_task(
    path: str, source: QuestionSource, training_chunks: int, trained_on: Mapping[str, Any], watch: Watch
) -> Task:
    """Questions of the same kind as the scored ones; stories have the training length."""
    if source.kind != "babi":
        return _task_with_chunks(source.kind, path, watch)
    haystack = _haystack(source, trained_on, watch)
    return hidden_stories_tasks(_name(path), read_babi(path), haystack, (training_chunks,))[0]


def _task_with_chunks(kind: str, path: str, watch: Watch) -> Task:
    """Questions of any kind except `babi`; they have their own chunks."""
    if kind == "jsonl":
        return examples_task(_name(path), read_examples(path))
    if kind == "vectors":
        return vectors_task(_name(path), read_vector_task(path))
    if kind == "beir":
        return _beir_task(Path(path), watch)
    read = READERS[kind](path)
    watch.note(describe(_name(path), read))
    return examples_task(f"{kind} {_name(path)}", read.examples, sum(read.left_out.values()), answers=read.answers)


def _beir_task(path: Path, watch: Watch) -> Task:
    """The questions of a BEIR folder, which all search its corpus; a document is a chunk."""
    folder, qrels = path, "test"
    if path.name.endswith((".tsv", ".tsv.gz")):
        folder, qrels = path.parent.parent, path.name.split(".tsv")[0]
    read = read_beir(folder, f"beir {folder.absolute().name} {qrels}", qrels=qrels)
    left_out = ", ".join(f"{number:,} ({reason})" for reason, number in read.left_out.items()) or "none"
    watch.note(
        f"{read.name}: {len(read.questions):,} questions, {len(read.documents):,} documents; left out: {left_out}"
    )
    return corpus_task(read, whole_judgements(folder, qrels), sum(read.left_out.get(reason, 0) for reason in NOT_ASKED))


def _check_size(task: Task, num_questions: int | None) -> None:
    """Refuses a corpus whose contexts do not fit into memory, before anything is embedded."""
    documents, asked = len(task.texts), min(len(task), num_questions or len(task))
    if documents > MOST_DOCUMENTS:
        raise UsageError(
            f"{task.name}: {documents:,} documents; a run reads all of them at every pick, and takes at most "
            f"{MOST_DOCUMENTS:,}: give a part of the corpus"
        )
    if documents * asked > MOST_PAIRS:
        reason = f"{documents:,} documents for each of {asked:,} questions do not fit into memory; ask at most "
        most = Arg("num_questions", MOST_PAIRS // documents)
        raise UsageError((f"{task.name}: ", reason, most), field="num_questions")


def _haystack(source: QuestionSource, trained_on: Mapping[str, Any], watch: Watch) -> Haystack:
    return held_back_haystack(source.haystack, _most_sentences(source), trained_on, note=watch.note)


def _most_sentences(source: QuestionSource) -> int:
    """Most sentences of the haystack; beyond ordinary contexts as many as could differ."""
    longest = max(source.num_chunks or (0,))
    default = longest if is_long(longest) else FEWEST_SENTENCES
    return default if source.max_haystack_sentences is None else source.max_haystack_sentences


def _name(path: str) -> str:
    return Path(path).name.split(".")[0]
