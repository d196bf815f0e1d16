"""`qrag notes`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags, llm_flags
from qrag_jax.names import MULTIHOP_SETS, NOTE_MODES, NOTE_READERS

ACTIONS = ("list", "export", "eval")

SUMMARY = "the notes that chunks get from other chunks: what an index has, and what they find"
DESCRIPTION = f"""\
Show and measure notes: short texts that a chunk gets from other chunks, so that one search finds evidence which only
together answers a question (SqRAG). Nothing is trained, and a language model asked only by the readers that say so.

  list INDEX      the notes of an index (`qrag index`): where each belongs, where it comes from, and what it says
  export INDEX    the same as JSON Lines; --pairs: those that join two chunks, with the whole text and place of both
  eval            the share of questions whose gold chunks are all among the first k, for every mode on the same
                  questions

Readers write the notes: `mentions` makes a sentence that names what another chunk is about a note of that chunk;
`scripted` asks and answers about the facts of bAbI stories. Modes use them: none; best_of (a chunk counts as the best
of its own vector and its notes', a note no more than the chunk that it comes from; best_of_uncapped: without that);
insert (those nearest to the question are put into their chunks, which are embedded again); all; random (as many as
insert, drawn: the control); walk (the second is what the first one names); bm25; and MODE+bm25 (fused with BM25 over
the texts with their notes, whose words nothing caps).

{llm_flags.READERS_HELP}
{llm_flags.HELP}
What comes out of eval: a row a mode and k with all_gold, its 95% interval, recall, and what the search cost: texts
embedded and milliseconds a question. --json writes the same rows as a list of objects.

HotpotQA and 2WikiMultihopQA were made along names that texts share, MuSiQue was not: their rows say nothing of it.
"""
EXAMPLES = """\
examples:
  qrag notes list notes.index
  qrag notes export notes.index --pairs > pairs.jsonl
  qrag notes eval --2wiki dev.jsonl --num_questions 60
  qrag notes eval --hotpot dev.jsonl --distractors corpus.json --modes none,best_of,best_of+bm25 --json rows.json
  qrag notes eval --babi qa2_valid.txt --filler stories --chunk_sentences 4 --num_chunks 15 --json rows.json
  qrag notes eval --hotpot dev.jsonl --num_questions 2 --reader llm --llm_model model.gguf --estimate
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag notes`."""
    parser.usage = (
        "qrag notes {list,export} INDEX [flags]\n"
        "       qrag notes eval (--hotpot | --2wiki | --musique | --babi) FILE [flags]"
    )
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="what to do, as above")
    parser.add_argument(
        "index", nargs="?", type=flags.filled, metavar="INDEX", help="list, export: folder of the index"
    )
    parser.add_argument(
        "--pairs", action="store_true", help="export: notes from another chunk alone, with both chunks as they are"
    )
    source = parser.add_mutually_exclusive_group()
    for name in MULTIHOP_SETS:
        source.add_argument(f"--{name}", type=flags.filled, metavar="FILE", help=f"as of `qrag eval --{name}`")
    source.add_argument("--babi", type=flags.filled, metavar="FILE", help="bAbI stories (qaN_*.txt or .txt.gz)")
    parser.add_argument(
        "--distractors", type=flags.filled, metavar="FILE", help="further passages of the pool; not with --babi"
    )
    parser.add_argument(
        "--filler",
        type=flags.filled,
        metavar="F",
        help="with --babi: what stories are hidden in: stories (others of the file, renamed), or a haystack as of "
        "`qrag eval --haystack` (default: stories)",
    )
    parser.add_argument(
        "--chunk_sentences", type=flags.positive, metavar="N", help="with --babi: sentences of a chunk (default: 4)"
    )
    parser.add_argument(
        "--num_chunks", type=flags.positive, metavar="N", help="with --babi: chunks of a story (default: 15)"
    )
    parser.add_argument(
        "--reader",
        choices=NOTE_READERS.names,
        help="who writes the notes (default: mentions; with --babi scripted, which reads nothing else)",
    )
    parser.add_argument(
        "--wrong_share",
        type=flags.amount,
        metavar="X",
        help="with --reader scripted: this share of the answers, drawn by --seed, names another place (default: 0)",
    )
    parser.add_argument(
        "--modes",
        type=_names,
        metavar="M,M",
        help=f"of {', '.join(NOTE_MODES)}, best_of_uncapped, bm25 and MODE+bm25 (default: {','.join(NOTE_MODES)})",
    )
    parser.add_argument("--k", type=flags.integers, metavar="K,K", help="(default: 2,4,5,10)")
    parser.add_argument(
        "--num_notes", type=flags.positive, metavar="N", help="insert, random: a question (default: 10)"
    )
    parser.add_argument(
        "--max_share",
        type=flags.amount,
        metavar="X",
        help="tokens of notes in a chunk, at most so many times its own, above 0 (default: 1)",
    )
    parser.add_argument(
        "--num_questions", type=flags.positive, metavar="N", help="draw so many by --seed (default: all of the file)"
    )
    flags.add_model(parser, "minilm")
    flags.add_seed(parser)
    flags.add_reading(parser)
    flags.add_compile_cache(parser)
    llm_flags.add_reader_flags(parser)
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="OUT",
        help="list, eval: write it as JSON to OUT; without OUT, or for -, print that in place of the table",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))
