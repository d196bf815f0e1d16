"""Flags of `qrag ask`. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli.parsers.chunk_help import STRATEGIES
from qrag_jax.cli.parsers.flags import filled, natural, positive
from qrag_jax.cli.parsers.llm_flags import add_llm_flags

RETRIEVERS = ("single_step", "bm25", "hybrid")


def add_ask(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the flags of `qrag ask` and returns the parser."""
    parser.usage = "qrag ask [-h] [--retriever R] [--llm L] [--show_context] [--json] [...] PATHS... QUESTION"
    parser.add_argument(
        "texts", nargs="+", metavar="PATHS... QUESTION", help="text files or folders of .txt and .md; the question last"
    )
    parser.add_argument(
        "--retriever",
        type=filled,
        default="hybrid",
        metavar="R",
        help=f"{', '.join(RETRIEVERS)}, or the run folder of `qrag demo` or `qrag train` (default: %(default)s)",
    )
    parser.add_argument(
        "--num_steps",
        type=positive,
        metavar="T",
        help="most passages to pick (default: of a run as in training, else as many as the context holds)",
    )
    parser.add_argument(
        "--max_context_tokens",
        type=positive,
        metavar="N",
        help="most tokens of the passages (default: 2,000, or what the window of a local model leaves)",
    )
    parser.add_argument(
        "--num_around",
        type=natural,
        metavar="N",
        help="with a run: most sentences to add on either side of a pick (default: 2)",
    )
    parser.add_argument(
        "--strategy", choices=STRATEGIES, help="how to cut, as in `qrag chunk` (default: recursive; not with a run)"
    )
    parser.add_argument(
        "--max_tokens", type=positive, metavar="N", help="no passage has more (default: 200; not with a run)"
    )
    parser.add_argument(
        "--model", metavar="M", help="encoder: minilm, a folder or a hub id (default: minilm; not with a run)"
    )
    parser.add_argument("--encoding", default="utf-8", metavar="E", help="of the files (default: %(default)s)")
    parser.add_argument("--show_context", action="store_true", help="also print the passages that the model was given")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_llm_flags(parser)
    return parser
