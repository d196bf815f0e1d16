"""`qrag ask`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags, search_flags
from qrag_jax.cli.llm_flags import HELP, add_llm_flags

SUMMARY = "have a language model answer from your own files, with citations"
DESCRIPTION = f"""\
Ask a question about your own text files: passages are retrieved, and a language model answers from them.

What comes out: the answer, then the passages that it cites, each with file:line and file:start-end (half-open offsets
into the decoded text, as in `qrag chunk`), and on standard error what it cost. A citation is shown only where the
passage exists and stands in its file to the character; a number that the model made up is named as such. That a
passage is cited does not prove that it says so: read it. Where nothing is cited the passages that the model was given
are listed instead. --json gives one object: answer, citations, unknown_citations, context, cost, model, prompt_sha256.
Where the model fails the exit code is 1, and what was retrieved is printed all the same. --no_llm asks none, and
prints the passages that it would have been given.

{search_flags.WAYS}\
  RUN      a trained retriever: it picks sentences step by step, as it was trained, and each pick is widened by up to
           --num_around sentences on either side while the context holds them; a folder as runs/mine or ./hybrid

The context is filled with the best passages first, up to --max_context_tokens, and stands in the prompt in document
order, fenced as data. The tokens are those of a local model, else of the encoder (a server's may differ by a little).
With --levels or --planner the passages are parts of documents at any of these levels: the first that does not fit is
given by its best leaves, and what was searched stands on standard error and in --json (docs/levels.md).

{HELP}"""
EXAMPLES = """\
examples:
  qrag ask notes/ "Who has the key to the garden?"
  qrag ask notes/ "Who has the key to the garden?" --no_llm
  qrag ask notes/ "Who has the key to the garden?" --retriever runs/mine --num_steps 3 --show_context
  qrag ask notes.index "How is the garden laid out?" --merge       an index of qrag index build ... --strategy tree
  qrag ask levels.index "Who has the key?" --levels section:paragraph   of qrag index build ... --strategy levels
  qrag ask book.txt "Who is Ishmael?" --llm openai --base_url http://127.0.0.1:8080/v1 --llm_model smollm2 --json
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag ask`."""
    parser.usage = "qrag ask [--retriever R] [--llm L] [--show_context] [--json] [flags] PATHS...|INDEX QUESTION"
    flags.add_texts(parser)
    search_flags.add_retriever(parser)
    search_flags.add_questions(parser)
    flags.add_num_steps(parser, "most passages to pick", "of a run as in training, else as many as the context holds")
    parser.add_argument(
        "--max_context_tokens",
        type=flags.positive,
        metavar="N",
        help="most tokens of the passages (default: 2,000, or what the window of a local model leaves)",
    )
    parser.add_argument(
        "--num_around",
        type=flags.natural,
        metavar="N",
        help="with a run: most sentences to add on either side of a pick (default: 2)",
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="give a whole section in place of its passages, where enough of these are found and the context holds it; "
        "of an index that was built with --strategy tree or hierarchy. It pays where answers take whole sections",
    )
    search_flags.add_levels(parser)
    search_flags.add_cutting(parser)
    search_flags.add_notes_mode(parser)
    search_flags.add_choice(parser)
    flags.add_compile_cache(parser)
    parser.add_argument("--show_context", action="store_true", help="also print the passages that the model was given")
    flags.add_json(parser, "one JSON object")
    parser.add_argument("--no_llm", action="store_true", help="ask no language model: print the passages alone")
    add_llm_flags(parser)
