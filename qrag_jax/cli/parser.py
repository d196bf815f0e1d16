"""The parsers of `qrag` and of each verb. Imports nothing heavy: `qrag --help` answers at once."""

import argparse
from types import ModuleType

from qrag_jax import __version__
from qrag_jax.cli.parsers import (
    ask_help,
    chunk_help,
    demo_help,
    eval_help,
    export_help,
    find_help,
    share_help,
    study_help,
    train_help,
)
from qrag_jax.cli.parsers.ask_flags import add_ask
from qrag_jax.cli.parsers.eval_flags import add_eval
from qrag_jax.cli.parsers.flags import add_haystack, add_json, add_num_steps, add_seed, natural, positive, seeds

_DESCRIPTION = """\
Train a retriever that finds scattered facts in long text, step by step, and use it on your own files.

  qrag demo                                       learn, measure and answer in about five minutes, offline
  qrag find runs/demo notes/ "Where is the key?"  ask a trained retriever about your own text files
  qrag ask notes/ "Where is the key?"             have a language model answer from them, with citations
"""


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

    def named(name: str, text: ModuleType) -> argparse.ArgumentParser:
        return add(name, text.SUMMARY, text.DESCRIPTION, text.EXAMPLES)

    verbs = {
        "demo": _add_demo(named("demo", demo_help)),
        "train": _add_train(named("train", train_help)),
        "eval": add_eval(named("eval", eval_help)),
        "find": _add_find(named("find", find_help)),
        "ask": add_ask(named("ask", ask_help)),
        "chunk": _add_chunk(named("chunk", chunk_help)),
        "study": _add_study(named("study", study_help)),
        "export": _add_export(named("export", export_help)),
        "push": _add_push(add("push", share_help.PUSH_SUMMARY, share_help.PUSH_DESCRIPTION, share_help.PUSH_EXAMPLES)),
        "pull": _add_pull(add("pull", share_help.PULL_SUMMARY, share_help.PULL_DESCRIPTION, share_help.PULL_EXAMPLES)),
    }
    return parser, verbs


def _add_demo(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--smoke", action="store_true", help="a short run that shows that it works, not how well")
    parser.add_argument(
        "--out", metavar="RUN", help="folder for results (default: runs/demo; with --smoke runs/demo-smoke)"
    )
    parser.add_argument("--babi", metavar="PATH", help="bAbI file, or folder of them, to score the retriever on too")
    add_haystack(parser)
    add_seed(parser)
    add_json(parser, "the rows of results.json instead of the table")
    return parser


def _add_train(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "--config_path", metavar="X.yaml", help="YAML file with the fields that differ from the defaults"
    )
    parser.add_argument("--out", default="runs/train", metavar="RUN", help="run folder to write (default: %(default)s)")
    parser.add_argument(
        "--seeds",
        type=seeds,
        metavar="N,N,...",
        help="train latent runs of these seeds together, on the same data, into RUN/seed_N (default: the seed field)",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if there is one")
    parser.add_argument("--distributed", action="store_true", help="one of several processes, as the cluster says")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="one of several processes; where the first one is")
    parser.add_argument("--num_processes", type=positive, metavar="N", help="with --coordinator: processes in all")
    parser.add_argument("--process_id", type=natural, metavar="I", help="with --coordinator: number of this one")
    parser.add_argument("--dry_run", action="store_true", help="print the whole resolved config as YAML and stop")
    add_json(parser, "the final metrics as JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as learner.gamma=0.9 or --seed=1")
    return parser


def _add_find(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    # argparse would repeat the last two
    parser.usage = "qrag find [-h] [--num_steps T] [--stop] [--json] RUN PATHS... QUESTION"
    parser.add_argument("run", metavar="RUN", help="run folder of `qrag demo` or `qrag train`")
    parser.add_argument(
        "texts", nargs="+", metavar="PATHS... QUESTION", help="text files or folders of .txt and .md; the question last"
    )
    add_num_steps(parser)
    parser.add_argument(
        "--stop",
        action="store_true",
        help="only the picks before the run's own stop: its threshold from held-out questions, or its learned STOP",
    )
    add_json(parser, "the steps as JSON")
    return parser


def _add_chunk(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("paths", nargs="+", metavar="FILE", help="text file, folder of .txt and .md, or - for stdin")
    parser.add_argument(
        "--strategy",
        choices=(*chunk_help.STRATEGIES, chunk_help.TREE),
        help="how to cut (default: fixed; with --tree, tree)",
    )
    parser.add_argument("--max_tokens", type=positive, metavar="N", help="no chunk has more (default: no limit)")
    parser.add_argument("--min_tokens", type=positive, metavar="N", help="join smaller chunks where the limit allows")
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
    add_json(parser, "one JSON object a line")
    parser.add_argument("--html", metavar="OUT.html", help="write a page that colours the chunks over the text")
    parser.add_argument("--tree", metavar="OUT.parquet", help="write the trees of all files, as Parquet or .arrow")
    parser.add_argument("--vectors", metavar="OUT.npy", help="of late: write float32 [chunks, dim] in printed order")
    return parser


def _add_study(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = study_help.USAGE
    parser.add_argument("--corpus", metavar="DIR", help="your own documents: a folder of .txt and .md, or a file")
    parser.add_argument("--questions", metavar="FILE.jsonl", help="questions about them, one a line")
    parser.add_argument(
        "--out", metavar="OUT", help="folder for results, outside of the documents (default: runs/study-NAME)"
    )
    add_json(parser, "the rows of results.json instead of the table")
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
        "--step", type=natural, metavar="N", help="which checkpoint (default: the newest that is whole)"
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
    parser.add_argument("--step", type=natural, metavar="N", help="which checkpoint (default: the newest)")
    return parser
