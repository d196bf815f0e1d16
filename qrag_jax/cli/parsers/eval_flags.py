"""Flags of `qrag eval`. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli.parsers.flags import add_haystack, add_num_steps, add_seed, integers, positive
from qrag_jax.cli.parsers.llm_flags import add_llm_flags
from qrag_jax.llm.defaults import SHORT_ANSWER_TOKENS

METHODS = ("trained", "untrained", "single_step", "bm25")  # as in eval.picks.records, whose import takes longer
PROTOCOLS = ("fixed", "threshold", "stop", "oracle")  # as in eval.picks.protocols
ANSWER_MEASURES = ("em", "f1", "contains", "rouge_l", "babilong", "claims", "judge")  # as in eval.answers.records


def add_eval(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the flags of `qrag eval` and returns the parser."""
    parser.add_argument("run", metavar="RUN", help="run folder of `qrag demo` or `qrag train`")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--babi", metavar="FILE", help="bAbI questions (.txt, .txt.gz), hidden in the haystack")
    source.add_argument("--jsonl", metavar="FILE", help='lines of {"question": ..., "chunks": [...], "gold": [...]}')
    source.add_argument("--hotpot", metavar="FILE", help="HotpotQA (distractor) as .json, .jsonl[.gz], .parquet, ...")
    source.add_argument("--musique", metavar="FILE", help="MuSiQue")
    source.add_argument("--2wiki", metavar="FILE", help="2WikiMultihopQA")
    source.add_argument("--vectors", metavar="DIR", help="chunk and question vectors, for a run trained on vectors")
    add_haystack(parser)
    parser.add_argument(
        "--num_chunks",
        type=integers,
        metavar="N,N,...",
        help="context lengths in chunks, for --babi (default: 1, 4, 16 and 64 times the training length)",
    )
    parser.add_argument(
        "--max_haystack_sentences",
        type=positive,
        default=20_000,
        metavar="N",
        help="embed at most this many sentences of the haystack (default: %(default)s)",
    )
    parser.add_argument("--num_questions", type=positive, metavar="N", help="questions a length (default: all)")
    add_seed(parser)
    add_num_steps(parser)
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
        type=integers,
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
    _add_answers(parser)
    return parser


def _add_answers(parser: argparse.ArgumentParser) -> None:
    """The flags of answers: a language model reads what the methods chose."""
    group = parser.add_argument_group("answers")
    group.add_argument(
        "--answers",
        nargs="?",
        const="",
        metavar="OUT.jsonl",
        help="also let a language model answer from the chosen chunks and score the answers; with a file, write one "
        "line an answer",
    )
    group.add_argument(
        "--answer_measures",
        type=_answer_measures,
        metavar="M,M,...",
        help=f"what answers are scored by, of {', '.join(ANSWER_MEASURES)} (default: em and f1, with --babi also "
        "babilong)",
    )
    group.add_argument(
        "--judges",
        type=_names,
        metavar="M,M,...",
        help="models that judge claims and judge, as of --llm_model (default: the one that answers); a budget is each "
        "model's own",
    )
    group.add_argument(
        "--answer_bounds",
        action="store_true",
        help="also answer from the gold chunks alone, and from none: what the reader is worth without a search",
    )
    group.add_argument("--answer_rows", metavar="OUT", help="write the answer rows as JSON")
    add_llm_flags(parser, max_answer_tokens=SHORT_ANSWER_TOKENS)


def _methods(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(f"{name!r} is no method; choose from {', '.join(METHODS)}")
    return names


def _answer_measures(text: str) -> tuple[str, ...]:
    names = _names(text)
    for name in names:
        if name not in ANSWER_MEASURES:
            raise argparse.ArgumentTypeError(f"{name!r} is no measure; choose from {', '.join(ANSWER_MEASURES)}")
    return names


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name, or one twice")
    return names


def _protocols(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in PROTOCOLS:
            raise argparse.ArgumentTypeError(f"{name!r} is no protocol; choose from {', '.join(PROTOCOLS)}")
    if len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r} names a protocol twice")
    return names
