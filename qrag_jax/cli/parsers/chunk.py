"""`qrag chunk`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags, llm_flags
from qrag_jax.names import BOUNDARY_SOURCES, CHUNKERS, SPLITTERS

TREE = "tree"  # of `qrag chunk` alone: its chunks hold one another

SUMMARY = "cut text files, every chunk with its exact place"
_STRATEGIES = f"""\
Cut text files into chunks, each with the exact place that it came from, and none larger than --max_tokens.
fixed, recursive and late fill chunks up to it, or to 256 tokens, unless they are given a size of their own.

{CHUNKERS.help()}\
  tree        all levels at once: the file, its sections, their paragraphs, lists, tables and fences of code, and parts
              of what is over --max_tokens, or 256 tokens; only what holds nothing else keeps to it (headings.max_level)

What comes out: a line a chunk with file:start-end (file:0-9,20-31 of two spans), its level, its tokens and how it
begins, with tree under what holds it. Level 0 is a whole document, 1 a part of it, 2 a part of a part. --json gives one
object a line: {{"id", "file", "spans": [[start, end], ...], "level", "num_tokens"}}, and the "page" of a PDF.

Offsets are half-open and count characters of the decoded text: line ends untouched, a byte order mark left out (Python:
open(file, encoding="utf-8-sig", newline="").read()[start:end]). The text of a chunk is that of its spans, joined by a
line break; its tokens are counted by the tokenizer of --model, special ones left out (a word of more than 100
characters, which MiniLM takes for one unknown token, is cut as if it had more). The same text under the same path gives
the same ids. The model itself is loaded for breakpoint, linkage, dbscan and --vectors only.

All files are read before the first is cut. One that is bad (another encoding, a zero byte, nothing but blank space) is
left out of a folder with a warning; where it was named itself, or with --strict, nothing is printed. --html, --tree and
--vectors are written when all files are done. --tree has the trees of all files, one after the other; Python:
qrag_jax.chunking.tree.tree_files.load_trees(file).
"""
DESCRIPTION = f"{_STRATEGIES}\n{llm_flags.POINTS_HELP}\n{llm_flags.HELP}"
EXAMPLES = """\
examples:
  qrag chunk book.txt --strategy recursive --max_tokens 256
  qrag chunk notes/ --strategy headings --max_tokens 400 --min_tokens 20 --html notes.html
  qrag chunk book.txt --strategy breakpoint --set breakpoint.threshold=gradient --set breakpoint.value=90 --json
  qrag chunk alt.txt --encoding cp1252 --language de --set fixed.sentences_per_chunk=5
  qrag chunk notes/ --tree notes.parquet --max_tokens 100
  qrag chunk plain.txt --strategy hierarchy --points rule --level_cap 2 --max_tokens 200 --trees plain.parquet
  qrag chunk notes/ --strategy levels --sizes 512,128,32 --tree notes.parquet
  qrag chunk plain.txt --strategy hierarchy --points llm --llm_model qwen.gguf --window_lines 60 --estimate
  qrag chunk - --strategy late --vectors vectors.npy
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag chunk`."""
    parser.add_argument(
        "paths", nargs="+", metavar="FILE", help="file, folder, or - for stdin: texts; PDF, HTML, DOCX, EPUB too"
    )
    flags.add_strategy(parser, (*CHUNKERS, TREE), "how to cut", "fixed; with --tree, tree")
    parser.add_argument(
        "--points",
        choices=BOUNDARY_SOURCES.choices("tree"),
        help="of hierarchy and levels: what tells where a part begins (default: headings, of Markdown; with --tagger, "
        "tagger)",
    )
    flags.add_tagger(parser)
    flags.add_sizes(parser)
    parser.add_argument(
        "--level_cap", type=flags.positive, metavar="N", help="of hierarchy: no part is deeper (default: no limit)"
    )
    flags.add_max_tokens(parser, "chunk", "no limit")
    parser.add_argument(
        "--min_tokens", type=flags.positive, metavar="N", help="join smaller chunks where the limit allows"
    )
    parser.add_argument("--config_path", metavar="X.yaml", help="YAML file with parameters of the strategies")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="one such parameter, as linkage.lambda_=0.3"
    )
    flags.add_model(parser, "%(default)s", value="minilm")
    flags.add_encoding(parser)
    flags.add_strict(parser)
    flags.add_reading(parser)
    parser.add_argument(
        "--splitter", choices=SPLITTERS, default="sentencex", help="of sentences (default: %(default)s)"
    )
    parser.add_argument("--language", default="en", metavar="L", help="of the sentences, as de or zh (default: en)")
    flags.add_json(parser, "one JSON object a line")
    parser.add_argument("--html", metavar="OUT.html", help="write a page that colours the chunks over the text")
    parser.add_argument(
        "--tree", "--trees", metavar="OUT.parquet", help="write the trees of all files, as Parquet or .arrow"
    )
    parser.add_argument("--vectors", metavar="OUT.npy", help="of late: write float32 [chunks, dim] in printed order")
    llm_flags.add_points_llm_flags(parser)
