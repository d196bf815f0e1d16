"""`qrag eval`: scores a trained retriever and its baselines on questions with known gold chunks."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrag_jax import service
from qrag_jax.cli.flags import made
from qrag_jax.cli.llm_flags import HELP, llm_config, llm_table
from qrag_jax.cli.output_paths import STDOUT, check_outputs, check_place
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, shown_lines, write_json
from qrag_jax.llm.calls import SHORT_ANSWER_TOKENS
from qrag_jax.names import ANSWER_MEASURES, METHODS, MULTIHOP_SETS, POOL_METHODS, PROTOCOLS
from qrag_jax.types import UsageError

if TYPE_CHECKING:  # they import JAX
    from qrag_jax.eval.answers.answering import Answered
    from qrag_jax.service.evaluating import AnswersRequest, EvalRequest, Evaluated

_ALL_METHODS = tuple(dict.fromkeys((*METHODS, *POOL_METHODS)))
_DESCRIPTION = """\
Score a trained retriever against baselines, on questions with known gold chunks.

The questions are those of bAbI (hidden in long text), HotpotQA, MuSiQue, 2WikiMultihopQA, BEIR, RULER, or your own.
Methods: `trained`; `untrained`, the same search without training; `single_step`, the nearest vectors; `bm25`.

The output is a table of exact match and F1 of facts with 95% intervals, one row for each method, protocol and length.
--json writes the rows; --per_query writes one line for each question with the chosen chunks and their Q values.

With --answers a language model also answers every question from the chunks that a method chose, in document order.
"""
_DETAILS = f"""\
A method picks --num_steps chunks; the protocol says how many of them count. `fixed`: all. `threshold`: those before the
first Q below a threshold fitted on other questions. `stop`: those before the learned STOP, for a run with
env.stop=true. `oracle`: those until all gold is found; it needs the labels, so it is an upper bound and not a method.

The tasks of RULER are niah_single_1 to _3, niah_multikey_1 to _3, niah_multivalue and niah_multiquery, all of them as
niah, variable tracking (vt), and qa_1 and qa_2 with a file of SQuAD or HotpotQA. A run over many documents searches the
chunks of one context. By default it picks as many as in training, or as many as a task has gold chunks if that is more.

Answers are scored by exact match and token F1 (normalised as in SQuAD; yes and no as in HotpotQA and 2Wiki), by whether
they contain a right answer, by BabiLong's rule, ROUGE-L (pip install 'qrag_jax[eval]'), and by judges of claims and
correctness. Failed calls are counted and are in no mean; --tests compares methods on questions that both answered.

{HELP}"""
_EXAMPLES = """\
examples:
  qrag eval runs/demo --babi qa2_valid.txt --num_chunks 50,160,1200 --json rows.json
  qrag eval runs/mine --jsonl questions.jsonl --per_query chosen.jsonl --methods trained,bm25
  qrag eval runs/multihop --hotpot hotpot_dev.json --protocol fixed,threshold,oracle --beam_width 1,4 --tests tests.json
  qrag eval runs/multihop --hotpot hotpot_dev.json --answers answers.jsonl --answer_bounds --tests tests.json
  qrag eval runs/mine --jsonl questions.jsonl --answers --answer_measures em,f1,judge --llm openai \\
      --base_url http://127.0.0.1:8080/v1 --llm_model qwen3
  qrag eval runs/mine --beir scifact/ --num_steps 10 --trec trec/
  qrag eval runs/mine --ruler niah,vt,qa_2:hotpot_dev.json --num_tokens 4096,131072 --num_questions 100 --json rows.json
  qrag eval runs/index --vectors index/         chunks.npy, questions.npy and episodes.jsonl
"""
_FLAGS = f"""\
run
|! --babi FILE             bAbI questions (.txt, .txt.gz), hidden in the haystack
|! --jsonl FILE            your questions, lines {{"question": ..., "chunks": [...], "gold": [...]}}
|! --hotpot FILE           HotpotQA (distractor) as .json, .jsonl[.gz], .parquet
|! --musique FILE          MuSiQue
|! --2wiki FILE            2WikiMultihopQA
|! --beir DIR              a BEIR folder, or one of its qrels/NAME.tsv (default: test)
|! --vectors DIR           chunk and question vectors, for a run of vectors
|! --ruler TASK,...        tasks of RULER, for --num_tokens: niah, vt, qa_1:SQUAD, qa_2:HOTPOT, ...
--pooled                   search the passages of all questions as one pool
. --distractors FILE       with --pooled: more passages in the pool, as for `qrag notes eval`
. --corpus INDEX           for a run over many documents: search this index; the lines of --jsonl name documents and
                           characters, {{"question": ..., "evidence": [{{"file": ..., "start": ..., "end": ...}}]}}
. --k N,N,... = 2,4,10     with --pooled or --corpus: print the share of questions with all gold among so many picks
. --haystack
--num_chunks N,N,...       context lengths in chunks, for --babi (default: 1, 4, 16 and 64 times the training length)
. --num_tokens N,N,...     context lengths in tokens of the run's tokenizer, for --ruler (default: 4096)
. --max_haystack_sentences N  embed at most this many sentences of the haystack (default: 20,000; for --num_chunks above
                           131,072 as many as there are chunks)
--num_questions N          questions for each length (default: all; RULER: 100)
--seed
. --num_steps
--methods M,...            methods to score, from {", ".join(_ALL_METHODS)} (default: all)
--protocol M,M,...         which picks count, from {", ".join(PROTOCOLS)} (default: fixed, and threshold and stop if the
                           run has them)
. --rerank MODEL           add a row: the best 10 chunks of single_step in the order of a reranker, as in `qrag find`
. --calibrate FILE         fit the thresholds of all methods on these questions: the same kind as the scored questions,
                           but none of them (default: the run's own threshold, for trained)
. --beam_width N,N,... = 1  also search with beams of these widths; 1 is greedy search
. --stopping DIR           write tables and plots of early, perfect and late stops, ROC and budgets
. --tests OUT              write paired tests between the methods as JSON, and print them
--json OUT                 write the rows as JSON; - prints them instead of the table
--per_query OUT.jsonl      write a line for each question: chosen chunks and Qs
. --trec DIR               write a ranking of each row and the judgements as TREC files, for trec_eval and ir_measures
--follow_links --max_input_gb --no_compile_cache
answers:
--answers [OUT.jsonl]      also score answers by a language model; with a file, write one line for each answer
. --answer_measures M,M,...  measures of answers, from {", ".join(ANSWER_MEASURES)} (default: em and f1;
                           with --babi also babilong)
. --judges M,M,...         models for the measures claims and judge, as for --llm_model; each has its own budget
                           (default: the model that answers)
. --answer_bounds          also answer from the gold chunks only, and from no chunks
. --answer_rows OUT        write the answer rows as JSON
{llm_table(SHORT_ANSWER_TOKENS)}"""
_CHOICES = {"methods": _ALL_METHODS, "protocol": PROTOCOLS, "answer_measures": ANSWER_MEASURES}


def _run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 if `--answers` got no answer at all."""
    check_outputs(vars(args))
    if args.trec:
        check_place("trec", Path(args.trec, "qrels"))
    if args.ruler:
        return _run_ruler(args)
    if args.num_tokens:
        raise UsageError("--num_tokens: needs --ruler; add it, or leave out --num_tokens")
    if args.pooled or args.corpus:
        return _run_pooled(args)
    for flag in ("distractors",):
        if getattr(args, flag):
            raise UsageError(f"--{flag}: needs --pooled; add it, or leave out --{flag}")
    from qrag_jax.eval.retrieval.records import row_values

    request = _request(args)
    with Progress() as progress:
        evaluated = service.evaluate_facts(request, progress.watch())
    _write_facts(evaluated, args)
    return _finish(evaluated, row_values(evaluated.scored.rows), args)


def _finish(evaluated: "Evaluated", facts: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> int:
    """Asks for answers and tests where they are wanted, and prints rows as JSON."""
    request = evaluated.request.answers
    answered = None if request is None else _answers(evaluated, request, args)
    _print_rows(facts, answered, args)
    if args.tests:
        _write_tests(evaluated, answered, args)
    if answered is not None and answered.all_failed:
        say(f"qrag: error: the language model gave no answer to any of {len(answered.records):,} questions")
        return 1
    return 0


def _run_pooled(args: argparse.Namespace) -> int:
    """Scores a run over many documents."""
    from qrag_jax.eval.tables import align, share
    from qrag_jax.service.pooled import PooledRequest, evaluate_pool

    kinds = ("babi", "jsonl", "vectors", "beir", *MULTIHOP_SETS)
    kind = next(kind for kind in kinds if getattr(args, kind) is not None)
    if kind not in (*MULTIHOP_SETS, "jsonl"):
        raise UsageError(f"--{kind}: has no pool of documents; give {', '.join(f'--{one}' for one in MULTIHOP_SETS)}")
    request = made(PooledRequest, vars(args), kind=kind, path=getattr(args, kind), ks=args.k)
    with Progress() as progress:
        found = evaluate_pool(request, progress.watch())
    if args.json:
        write_json({"rows": list(found.rows), "questions": list(found.questions)}, args.json)
    if args.json != STDOUT:
        heads = ["task", "method", "k", "all gold", "95% interval", "recall", "n", "chunks"]
        lines = [
            [row["task"], row["method"] + f", beam {row['beam_width']}" * (row["beam_width"] > 1), str(row["k"]),
             share(row["all_gold"]), f"[{share(row['low'])}, {share(row['high'])}]", share(row["recall"]),
             str(row["n"]), f"{row['num_chunks']:,}"]
            for row in found.rows
        ]  # fmt: skip
        print(shown_lines("\n".join(align([heads, *lines]))))
    return 0


def _run_ruler(args: argparse.Namespace) -> int:
    """Scores tasks of RULER."""
    from qrag_jax.eval.retrieval.score import Options
    from qrag_jax.eval.setting import write_lines
    from qrag_jax.service.ruler import RulerRequest, evaluate_ruler, searches_pool

    for flag in ("pooled", "corpus", "distractors", "num_chunks", "calibrate", "max_haystack_sentences"):
        if getattr(args, flag):
            raise UsageError(f"--{flag}: does not go with --ruler; leave it out")
    values = vars(args)
    request = made(RulerRequest, values, options=made(Options, values), answers=_answers_request(args))
    for flag in ("tests", "trec", "answer_rows"):
        if values[flag] and searches_pool(args.run):
            raise UsageError(f"--{flag}: works only with a run that picks from one context; leave it out")
    with Progress() as progress:
        found = evaluate_ruler(request, progress.watch())
    rows = list(found.rows)
    if args.json and args.json != STDOUT:
        write_json(rows, args.json)
    if args.json != STDOUT:
        print(shown_lines(_ruler_table(rows)), flush=True)
    if found.evaluated is not None:
        _write_picks(found.evaluated, args)
        return _finish(found.evaluated, rows, args)
    for path in filter(None, (args.per_query, args.answers)):
        write_lines(path, found.questions)
    if args.json == STDOUT:
        write_json(rows)
    if request.answers is not None and all(row["string_match"] is None for row in rows):
        say(f"qrag: error: the language model gave no answer: {found.questions[0]['error']}")
        return 1
    return 0


def _ruler_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each task, length and method, and for contexts for each protocol and beam width too."""
    from qrag_jax.eval.tables import align, interval, share

    heads = ["task", "tokens", "method", "picks", "all gold", "95% interval", "recall", "n", "chunks"]
    lines, answered = [], any("string_match" in row for row in rows)
    heads += ["answers", "95% interval", "failed"] * answered
    for row in rows:
        protocol, width = row.get("protocol", "fixed"), row.get("beam_width", 1)
        method = row["method"] + f", {protocol}" * (protocol != "fixed") + f", beam {width}" * (width > 1)
        lines.append(
            [row["task"], f"{row['num_tokens']:,}", method, str(row["k"]), share(row["all_gold"]),
             interval(row["low"], row["high"]), share(row["recall"]), str(row["n"]), f"{row['num_chunks']:,}"]
        )  # fmt: skip
        if answered:
            found = row["string_match"]
            told = interval(row["string_match_low"], row["string_match_high"]) if found is not None else ""
            lines[-1] += ["" if found is None else share(found), told, str(row["num_failed"])]
    return "\n".join(align([heads, *lines]))


def _request(args: argparse.Namespace) -> "EvalRequest":
    from qrag_jax.eval.retrieval.score import Options

    values, kinds = vars(args), ("babi", "jsonl", "vectors", "beir", *MULTIHOP_SETS)
    kind = next(kind for kind in kinds if values[kind] is not None)
    source = made(service.QuestionSource, values, kind=kind, path=values[kind])
    options, answers = made(Options, values), _answers_request(args)
    return made(service.EvalRequest, values, source=source, options=options, answers=answers)


def _answers_request(args: argparse.Namespace) -> "AnswersRequest | None":
    if args.answers is not None:
        return made(service.AnswersRequest, vars(args), llm=llm_config(vars(args)))
    for flag in ("answer_measures", "judges", "answer_rows", "answer_bounds"):
        if getattr(args, flag):
            raise UsageError(f"--{flag}: needs --answers; add it, or leave out --{flag}")
    return None


def _write_facts(evaluated: "Evaluated", args: argparse.Namespace) -> None:
    """Writes the scores of facts, before a language model is asked, which takes long and may fail."""
    from qrag_jax.eval.retrieval.records import write_rows
    from qrag_jax.eval.retrieval.report import format_table

    scored = evaluated.scored
    if args.json and args.json != STDOUT:
        write_rows(args.json, scored.rows)
    if args.json != STDOUT:
        print(shown_lines(format_table(scored.rows)), flush=True)
    _write_picks(evaluated, args)


def _write_picks(evaluated: "Evaluated", args: argparse.Namespace) -> None:
    from qrag_jax.eval.retrieval.records import write_records
    from qrag_jax.eval.retrieval.trec_files import write_trec

    scored = evaluated.scored
    if args.per_query:
        write_records(args.per_query, [record for own in scored.records for record in own])
    if args.trec:
        for task, records in zip(evaluated.tasks, scored.records, strict=True):
            write_trec(args.trec, task, records)


def _answers(evaluated: "Evaluated", request: "AnswersRequest", args: argparse.Namespace) -> "Answered":
    """Asks the model for answers, writes the files and says on standard error what was spent."""
    from qrag_jax.eval.answers.records import answer_row_values, write_answer_records
    from qrag_jax.llm.prices import spent

    with Progress() as progress:
        answered = service.evaluate_answers(evaluated, progress.watch())
    if args.answers:
        write_answer_records(args.answers, answered.records)
    if args.answer_rows:
        write_json(answer_row_values(answered.rows), args.answer_rows)
    cost = spent(answered.calls, request.llm.load_prices())
    kept = sum(call.from_journal for call in answered.calls)
    failed = sum(call.error is not None for call in answered.calls)
    say(
        f"language model: {len(answered.calls):,} calls, {kept:,} from the journal, {failed:,} failed; "
        f"{cost.prompt_tokens:,} prompt and {cost.completion_tokens:,} completion tokens"
        + ("" if cost.dollars is None else f", ${cost.dollars:.6f}")
    )
    error = next((call.error for call in answered.calls if call.error is not None), None)
    if error is not None:
        say(f"first failure: {error}")
    return answered


def _print_rows(facts: Sequence[Mapping[str, Any]], answered: "Answered | None", args: argparse.Namespace) -> None:
    from qrag_jax.eval.answers.records import answer_row_values
    from qrag_jax.eval.answers.report import format_answers

    if args.json == STDOUT:
        write_json(facts if answered is None else {"facts": facts, "answers": answer_row_values(answered.rows)})
    elif answered is not None:
        print(shown_lines(format_answers(answered.rows)))


def _write_tests(evaluated: "Evaluated", answered: "Answered | None", args: argparse.Namespace) -> None:
    from qrag_jax.eval.retrieval.compare import comparison_values, format_comparisons

    found = service.compare_methods(evaluated, answered)
    write_json(comparison_values(found), args.tests)
    if args.json != STDOUT:
        print(shown_lines(format_comparisons(found)))


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run, details=_DETAILS, choices=_CHOICES)
