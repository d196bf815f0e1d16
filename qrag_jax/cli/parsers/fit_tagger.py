"""`qrag fit tagger`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags
from qrag_jax.names import VIEWS

SUMMARY = "where sections begin, for documents without headings"
DESCRIPTION = """\
Learn from documents with headings where sections begin, for documents without them. A tagger reads vectors of
sentences, how alike the text on both sides of a gap is, words, marks and paragraphs; it says for each sentence whether
a section begins there, and of which level, 1 to 3.

PATHS are Markdown files and folders, scisumm:PATH (papers of CL-SciSumm) or wikitext2:PATH (articles). Headings are
what is right; what the tagger sees of them is the --view: removed, not at all (for text that has none); plain, as lines
of text; kept, with their marks. Documents without a section are left out of folders and counted, and so are those that
are there twice; a file that has none is refused by name.

What comes out, in --out: a checkpoint folder that stands alone, for `qrag chunk --points tagger --tagger RUN` and
`qrag points --methods tagger --tagger RUN`. It works with vectors of the --model that it was trained on, and refuses
others. At the end stands what to expect on documents of the same kind: F1 of exact sentences, each document by a tagger
that had not seen it, with its 95% interval over documents.

Embedding the documents takes minutes, the training after it seconds. The same documents, --seed and machine give the
same tagger.

A tagger is good on the kind of documents that it was trained on. On a kind that it never saw it need not be above
breakpoint: one of papers found less in encyclopedia articles (F1 .14, breakpoint .18), one of articles little in papers
(.10, breakpoint .09); trained on their own kind they reach .47 and .44. Without --tagger, `qrag chunk --points tagger`
takes one that was trained on such papers and articles without their headings. It does not know lines that are headings
(.21 and .05): for those take --points rule, or train with --view plain.
"""
EXAMPLES = """\
examples:
  qrag fit tagger handbook/ --out runs/tagger
  qrag fit tagger handbook/ reports/ wikitext2:articles.jsonl.gz --out runs/mixed --seed 1
  qrag chunk plain.txt --strategy hierarchy --points tagger --tagger runs/tagger --max_tokens 200
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag fit tagger`."""
    parser.usage = "qrag fit tagger PATHS... --out RUN [flags]"
    parser.add_argument("paths", nargs="+", metavar="PATHS", help="files or folders, scisumm:PATH or wikitext2:PATH")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    parser.add_argument(
        "--view", choices=VIEWS, default="removed", help="what the tagger sees of the headings (default: %(default)s)"
    )
    flags.add_model(parser, "%(default)s", value="minilm")
    flags.add_seed(parser)
    flags.add_reading(parser)
    flags.add_compile_cache(parser)
    flags.add_json(parser, "what came out as JSON")
