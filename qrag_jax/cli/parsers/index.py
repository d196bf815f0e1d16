"""`qrag index`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags, llm_flags, search_flags
from qrag_jax.cli.parsers.chunk import TREE
from qrag_jax.names import CHUNKERS, INDEX_NOTES, PARENTS

ACTIONS = ("build", "add", "remove", "merge", "info")

SUMMARY = "keep your files cut and embedded, to be asked many times"
DESCRIPTION = f"""\
Keep documents, their chunks and vectors in a folder, INDEX, that `qrag find` and `qrag ask` search at once.

  build INDEX PATHS...    make it, or bring it up to date: what has changed is read again, what is gone is removed
  add INDEX PATHS...      the same for these files and folders, and nothing is removed
  remove INDEX PATHS...   take the documents of these paths out, without a rest
  merge INDEX             join shards that were built with --num_shards and --shard
  info INDEX              what it holds; --verify compares every document with its hash

What comes out: a line that says how many documents were read, were as before, are removed and failed, and how many
chunks were embedded. A document goes by its path as it was named. Whether it has changed its bytes decide, and a chunk
whose text is known keeps its vector. Each document is written at once with its hash: however a command ends, the next
one goes on there. An empty folder, or one that cannot be read, removes nothing. What cannot be read is recorded, named,
and tried again when its bytes change. A file that has become empty or unreadable takes nothing away: its document stays
as it was, is named with the reason here and by `info`, and the exit code is 1; `remove` takes it out.

With --strategy levels documents are kept as trees whose levels have names: document, section, subsection, paragraph,
sentence, or with --sizes spans of so many tokens (docs/levels.md). `qrag ask INDEX QUESTION --levels section:paragraph`
searches some of them. --points, --sizes and --parents choose that strategy, unless one is named.

Chunks get notes from other chunks (docs/notes.md): sentences that name what they are about, by which `qrag find` and
`qrag ask` find them too. They are made of all documents together, whenever those have changed. With --notes llm a
language model asks and answers (SqRAG): name it each time that documents change; what it has answered is in the
journal, so only what is new is asked. --estimate reads and embeds the documents, says what their notes will take at
most, and stops; without it, the same command goes on from there.

{llm_flags.HELP}"""
EXAMPLES = """\
examples:
  qrag index build notes.index notes/
  qrag find notes.index "Who has the key to the garden?"
  qrag index add notes.index letters/ diary.txt
  qrag index build levels.index notes/ --strategy levels --points tagger --parents mean
  qrag index build big.index library/ --workers 2
  qrag index remove notes.index diary.txt
  qrag index info notes.index --verify
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag index`."""
    parser.usage = "qrag index {build,add,remove,merge,info} INDEX [PATHS...] [flags]"
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="what to do, as above")
    parser.add_argument("index", type=flags.filled, metavar="INDEX", help="folder of the index")
    parser.add_argument("paths", nargs="*", metavar="PATHS", help="files or folders")
    parser.add_argument(
        "--retriever",
        type=flags.filled,
        metavar="RUN",
        help="cut and embed as this run reads; the index then serves it and every run on its encoder (default: none)",
    )
    flags.add_model(parser, "minilm; not with a run")
    flags.add_strategy(parser, (*CHUNKERS, TREE), "how to cut, as in `qrag chunk`", "recursive; not with a run")
    flags.add_max_tokens(parser, "chunk", "200; with --sizes no other limit; not with a run")
    search_flags.add_points(parser)
    parser.add_argument(
        "--parents",
        choices=[way for way in PARENTS if way != "summary"],
        help="of levels: how a part that holds others is known: best_child (by its best leaf; no vector of it stays), "
        "mean (of its children), windows (of its text, read in windows), direct (of its text as far as the encoder "
        "reads), compressor (by a network that reads its children) (default: best_child)",
    )
    parser.add_argument(
        "--compressor",
        type=flags.filled,
        metavar="RUN",
        help="of parents by compressor: run folder of `qrag fit compressor`",
    )
    parser.add_argument(
        "--notes",
        choices=INDEX_NOTES,
        help="build, add: who writes the notes of chunks; another one writes them anew (default: that of the index; of "
        "a new one mentions, and none of a run or of levels)",
    )
    parser.add_argument(
        "--workers",
        type=flags.natural,
        default=0,
        metavar="N",
        help="processes that read and embed (default: none)",
    )
    parser.add_argument("--num_shards", type=flags.positive, metavar="N", help="build: make the index in so many parts")
    parser.add_argument("--shard", type=flags.natural, metavar="K", help="build: which part, from 0")
    parser.add_argument("--verify", action="store_true", help="info: compare every document with its hash")
    flags.add_encoding(parser, None, "a document's own, as it was read before; of new ones utf-8")
    parser.add_argument("--strict", action="store_true", help="build, add: a file that cannot be read ends the command")
    flags.add_reading(parser)
    llm_flags.add_reader_flags(parser)
    flags.add_json(parser, "one JSON object")
