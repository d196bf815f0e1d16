"""Scores a run on RULER: `qrag eval --ruler`.

A run that searches many documents searches the chunks of one context as its pool. Other runs pick from the context, on
the path of all other questions with contexts of their own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.data.stories.haystack import held_back_haystack
from qrag_jax.data.stories.ruler_context import RulerQuestion
from qrag_jax.eval.retrieval.records import QueryRecord, Row
from qrag_jax.eval.retrieval.ruler_sets import RulerSet, check_tasks, default_steps, make_sets
from qrag_jax.eval.retrieval.score import Options, Run, Scored, check_protocols, open_run, score
from qrag_jax.llm.calls import ask_all
from qrag_jax.llm.config import make_generator
from qrag_jax.llm.prompts import load_prompt, passages_prompt
from qrag_jax.llm.thinking import empty_answer
from qrag_jax.llm.wrappers import WatchedGenerator
from qrag_jax.measures.aggregate import mean_interval
from qrag_jax.measures.answer_scores import string_match
from qrag_jax.names import POOL_METHODS
from qrag_jax.qrag.multi_step_search import check_questions
from qrag_jax.qrag.pool_search import PoolBank, make_pool_bank
from qrag_jax.qrag.retriever import QRagRetriever
from qrag_jax.qrag.tasks import Task, examples_task
from qrag_jax.search.pool_texts import PoolTexts
from qrag_jax.service.evaluating import AnswersRequest, EvalRequest, Evaluated, QuestionSource, make_reader
from qrag_jax.service.pooled import pick_from_pool
from qrag_jax.types import NOBODY, Arg, Example, Sampling, TextGenerator, UsageError, Watch

_CHUNK_TOKENS = 64  # of the paper, special tokens counted
_NUM_QUESTIONS = 100
_ANSWER_TOKENS = 128  # four numbers, or five variables, and some words
_ONLY_CONTEXTS = ("protocols", "stopping", "rerank")  # options that a search of a pool does not have


@dataclass(frozen=True)
class RulerRequest:
    """Tasks of RULER, and the run to score on them.

    Attributes:
        run: folder of the run.
        ruler: tasks; qa tasks as NAME:FILE; niah is all tasks with needles.
        num_tokens: lengths of contexts, in tokens of the run's tokenizer.
        haystack: essays, as of `load_haystack`.
        options: the rows to compute; `num_questions` None is 100, `num_steps` None is that of the run, or as many as a
            task has gold chunks if these are more.
        answers: to score too; None scores facts only. Of a run over many documents they are scored by RULER's string
            match, whatever the measures.
    """

    run: str
    ruler: tuple[str, ...]
    num_tokens: tuple[int, ...] = (4096,)
    haystack: str = "sotu"
    options: Options = field(default_factory=Options)
    answers: AnswersRequest | None = None

    def __post_init__(self) -> None:
        check_tasks(self.ruler)
        if not self.num_tokens or min(self.num_tokens) < 1:
            raise UsageError("give lengths of at least 1 token", field="num_tokens", value=self.num_tokens)
        if len(set(self.num_tokens)) < len(self.num_tokens):
            given = Arg("num_tokens", self.num_tokens)
            raise UsageError((given, ": contains a length twice"), field="num_tokens", value=self.num_tokens)


@dataclass(frozen=True)
class RulerScored:
    """The result.

    Attributes:
        rows: one for each task, length and method (in contexts also each protocol and beam width): k is the number of
            picks, `all_gold` the share of questions with all gold chunks among them, with its 95% interval, `recall`
            the mean share of the gold, `ceiling` the share of questions with at most k gold chunks. With answers of
            a run over many documents also `string_match`, its interval, and the number of calls that failed.
        questions: of a run over many documents, one for each row and question: its gold, picks, scores and answer.
        evaluated: of a run that picks from contexts, for tests and answers.
    """

    rows: Sequence[Mapping[str, Any]]
    questions: Sequence[Mapping[str, Any]] = ()
    evaluated: Evaluated | None = None


def searches_pool(run: str) -> bool:
    """True for a run over many documents."""
    return load_checkpoint(run, groups=()).config.get("env", {}).get("pool") is not None


def evaluate_ruler(request: RulerRequest, watch: Watch = NOBODY) -> RulerScored:
    """Makes the questions of each task and length, and scores the picks of each method."""
    trained = open_run(request.run)
    if trained.retriever.env.pool is None:
        check_protocols(request.options, trained, calibrated=False)
        return _score_contexts(trained, request, watch)
    _check_pool_request(request)
    return _score_pools(trained, request, watch)


def _check_pool_request(request: RulerRequest) -> None:
    """Refuses what a search of many documents does not have, before anything is made."""
    many = "this run searches many documents, whose picks are scored by "
    wrong = [name for name in _ONLY_CONTEXTS if getattr(request.options, name)]
    wrong += ["beam_widths"] if max(request.options.beam_widths) > 1 else []
    if request.answers is not None:
        own = {"answer_measures": "measures", "judges": "judges", "answer_bounds": "bounds"}
        wrong += [name for name, field in own.items() if getattr(request.answers, field)]
    if wrong:
        raise UsageError((many, "their gold and by string match: leave out ", Arg(wrong[0])), field=wrong[0])
    for method in request.options.methods or ():
        if method not in POOL_METHODS:
            raise UsageError(f"{many}{', '.join(POOL_METHODS)}", field="methods", value=method)


def _sets(trained: Run, request: RulerRequest, watch: Watch) -> Iterator[tuple[RulerSet, int]]:
    """The questions of each task and length, and the picks for each question."""
    encoder, options = trained.retriever.encoder, request.options
    if encoder is None:
        raise UsageError("this run was trained on given vectors and has no tokenizer: RULER is made of texts")
    tokenizer, asked = encoder.tokenizer, options.num_questions or _NUM_QUESTIONS
    sets = make_sets(
        check_tasks(request.ruler), request.num_tokens, asked, options.seed,
        lambda texts: [len(ids) for ids in tokenizer.ids(texts)],
        lambda: held_back_haystack(request.haystack, None, trained.data, note=watch.note).sentences,
        _CHUNK_TOKENS - tokenizer.num_special,
    )  # fmt: skip
    for one in sets:
        k = options.num_steps or default_steps(one.task, trained.retriever.env.num_steps)
        if len(one.questions) < asked and options.num_questions:
            watch.note(f"{one.task}: its file has {len(one.questions):,} questions only")
        most = max(len(question.gold) for question in one.questions)
        if most > k:
            told = f"{one.task}, {one.num_tokens:,} tokens: questions have up to {most} gold chunks, which {k} picks "
            watch.note((told, "cannot contain; raise ", Arg("num_steps")))
        yield one, k


def _row(one: RulerSet, method: str, k: int, shares: np.ndarray, request: RulerRequest, trained: Run) -> dict[str, Any]:
    """A row from the share of the gold that was found for each question."""
    complete = mean_interval((shares == 1).astype(float), seed=request.options.seed)
    return {
        "task": one.task,
        "num_tokens": one.num_tokens,
        "num_chunks": round(float(np.mean([len(question.chunks) for question in one.questions]))),
        "method": method,
        "k": k,
        "all_gold": complete.mean,
        "low": complete.low,
        "high": complete.high,
        "recall": float(shares.mean()),
        "ceiling": float(np.mean([len(question.gold) <= k for question in one.questions])),
        "n": complete.n,
        "seed": request.options.seed,
        "run_seed": int(trained.labels.seed),
    }


class _Vectors:
    """Vectors of texts by the encoder of a run; each distinct text is embedded once."""

    def __init__(self, retriever: QRagRetriever) -> None:
        self._retriever, self._places = retriever, dict[str, int]()
        self._vectors: np.ndarray | None = None

    def add(self, texts: Sequence[str], progress: Callable[[int, int], None]) -> int:
        """Embeds the texts that are new, and tells how many of them the window cut."""
        new = [text for text in dict.fromkeys(texts) if text not in self._places]
        if not new:
            return 0
        before = self._retriever.chunk_encoder.counts.num_texts_cut
        made = self._retriever.chunk_encoder(new, progress)
        self._places |= {text: len(self._places) + i for i, text in enumerate(new)}
        self._vectors = made if self._vectors is None else np.concatenate([self._vectors, made])
        return self._retriever.chunk_encoder.counts.num_texts_cut - before

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, dim], of texts that were added."""
        assert self._vectors is not None
        return self._vectors[[self._places[text] for text in texts]]


def _score_pools(trained: Run, request: RulerRequest, watch: Watch) -> RulerScored:
    """Each question searches the chunks of its context as its own pool."""
    pools = trained.retriever.env.pool
    assert pools is not None
    env = replace(trained.retriever.env, pool=replace(pools, per_document=None))  # a context is one document
    trained = replace(trained, retriever=replace(trained.retriever, env=env))
    vectors, methods = _Vectors(trained.retriever), request.options.methods or POOL_METHODS
    threshold = trained.threshold and trained.threshold.value
    rows, records = [], []
    reader = None if request.answers is None else make_generator(request.answers.llm)
    for one, k in _sets(trained, request, watch):
        _check_sizes(one, k)
        check_questions(trained.retriever, [question.question for question in one.questions])
        texts = [text for question in one.questions for text in question.chunks]
        if num_cut := vectors.add(texts, watch.stage(f"embed {one.task}")):
            window = trained.retriever.model.encoder.window
            watch.note(f"{one.task}: {num_cut:,} new chunks are longer than the {window} tokens that this run reads")
        shares, bank = np.zeros((len(methods), len(one.questions))), None
        for i, question in enumerate(one.questions):
            bank = make_pool_bank(trained.retriever, _pool(question, vectors), like=bank)
            for number, method in enumerate(methods):
                record = _picked(bank, question, method, k, threshold)
                shares[number, i] = np.isin(question.gold, record["picks"]).mean()
                records.append({"task": one.task, "num_tokens": one.num_tokens, **record})
            watch.report(f"{one.task}, {one.num_tokens:,} tokens", i + 1, len(one.questions), {})
        of_set = records[-len(methods) * len(one.questions) :]
        for number, method in enumerate(methods):
            own = [record for record in of_set if record["method"] == method]
            more = {} if reader is None else _answered(one, own, reader, request, watch)
            rows.append(_row(one, method, k, shares[number], request, trained) | more)
    return RulerScored(rows, records)


def _answered(
    one: RulerSet, records: Sequence[dict[str, Any]], reader: TextGenerator, request: RulerRequest, watch: Watch
) -> dict[str, Any]:
    """Answers from the picks of a method, in the order of the context; adds them to the records."""
    template = load_prompt("short_answer", request.answers and request.answers.llm.prompts)
    prompts = [
        passages_prompt(template, own.question, [own.chunks[i] for i in sorted(record["picks"])], "ruler")
        for own, record in zip(one.questions, records, strict=True)
    ]
    stage = f"answer {one.task}, {records[0]['method']}"
    asking = WatchedGenerator(reader, lambda done, of, said: watch.answered(stage, done, of, said))
    said = ask_all(asking, prompts, sampling=Sampling(max_tokens=_ANSWER_TOKENS))
    needs_all, scores = not any(one.questions[0].titles), []
    for own, record, answer in zip(one.questions, records, map(empty_answer, said), strict=True):
        record |= {"answer": answer.text, "error": answer.error}
        if not answer.is_failed:
            scores.append(string_match(answer.text, own.answers, needs_all))
    told: dict[str, Any] = {"num_failed": len(said) - len(scores)}
    if not scores:
        return told | dict.fromkeys(("string_match", "string_match_low", "string_match_high"))
    found = mean_interval(np.array(scores), seed=request.options.seed)
    return told | {"string_match": found.mean, "string_match_low": found.low, "string_match_high": found.high}


def _pool(question: RulerQuestion, vectors: _Vectors) -> PoolTexts:
    """The chunks of a context; titled paragraphs are a document each, as in training, and others one document."""
    titled, size = any(question.titles), len(question.chunks)
    documents = np.arange(size) if titled else np.zeros(size, np.int64)
    return PoolTexts(question.chunks, question.titles, documents, vectors.of(question.chunks))


def _picked(bank: PoolBank, question: RulerQuestion, method: str, k: int, threshold: float | None) -> dict[str, Any]:
    picks, scores, kept = pick_from_pool(method, bank, [question.question], k, threshold)
    return {
        "method": method,
        "id": question.id,
        "question": question.question,
        "gold": list(question.gold),
        "picks": picks[0].tolist(),
        "scores": np.round(scores[0].astype(float), 6).tolist(),
        "kept": None if kept is None else int(kept[0]),
        "answers": list(question.answers),
    }


def _check_sizes(one: RulerSet, k: int) -> None:
    fewest = min(len(question.chunks) for question in one.questions)
    if fewest < k:
        reason = f": a context of {one.task} has {fewest} chunks, which cannot give {k} picks; give more tokens"
        given = Arg("num_tokens", one.num_tokens)
        raise UsageError((given, reason), field="num_tokens", value=one.num_tokens)


def _score_contexts(trained: Run, request: RulerRequest, watch: Watch) -> RulerScored:
    """Each question picks from its context; tasks of one number of picks are scored together."""
    sets = list(_sets(trained, request, watch))
    tasks = [_task(one) for one, _ in sets]
    reader = None if request.answers is None else make_reader(request.answers, "ruler", tasks, watch)
    scored = Scored([], [])
    for k, group in groupby(zip(sets, tasks, strict=True), key=lambda pair: pair[0][1]):
        own = [task for _, task in group]
        found = score(trained, own, replace(request.options, num_steps=k), None, watch)
        scored = Scored(scored.rows + found.rows, scored.records + found.records)
    rows = []
    for (one, k), task, records in zip(sets, tasks, scored.records, strict=True):
        of_task = [row for row in scored.rows if row.task == task.name]
        rows += [_context_row(one, k, row, records, request, trained) for row in of_task]
    source = QuestionSource("ruler", ",".join(request.ruler), request.haystack)
    asked = EvalRequest(request.run, source, request.options, answers=request.answers)
    return RulerScored(rows, evaluated=Evaluated(asked, tasks, scored, reader))


def _task(one: RulerSet) -> Task:
    """The questions with their contexts. Several values are one answer, reference answers of a QA task are several."""
    examples = [Example(question.id, question.question, question.chunks, question.gold) for question in one.questions]
    is_qa = any(one.questions[0].titles)
    answers = [question.answers if is_qa else (", ".join(question.answers),) for question in one.questions]
    return examples_task(f"{one.task} {one.num_tokens}", examples, answers=answers)


def _context_row(
    one: RulerSet, k: int, row: Row, records: Sequence[QueryRecord], request: RulerRequest, trained: Run
) -> dict[str, Any]:
    own = [record for record in records if record.setting == row.setting]
    shares = np.array([np.isin(record.gold, record.chosen).mean() for record in own])
    more = {"protocol": row.setting.protocol, "beam_width": row.setting.beam_width, "num_taken": row.num_taken}
    return _row(one, row.setting.method, k, shares, request, trained) | more
