"""`qrag fit compressor`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags, llm_flags
from qrag_jax.names import COMPRESSOR_KINDS, COMPRESSOR_LOSSES, COMPRESSOR_TARGETS

SUMMARY_TOKENS = 128

SUMMARY = "one vector for a section, from those of its sentences"
DESCRIPTION = f"""\
Learn to make the vector of a section from the vectors of its sentences, so that a section of any length is searched by
one vector, and no text is embedded twice.

PATHS are Markdown files and folders, scisumm:PATH (papers of CL-SciSumm) or wikitext2:PATH (articles). Their headings
say where sections are, and are removed; a section of one sentence is left out. What a vector is to be near to is the
--target: windows, the whole section in pieces that the encoder reads, averaged; lead, its first --lead_tokens; summary,
what a language model says of it in short.

  --kind    mlp: the mean of the children by tokens, plus a network of all; attention: weights of the children that are
            learned; both. Untrained each is the mean
  --loss    distance: the squared distance to the target; ranking: that, and sentences that are taken out of a section
            must find it among others
Without these flags all are tried: documents that are held out choose, by how often such a sentence finds its section.

What comes out, in --out: a checkpoint folder that stands alone, for `qrag index build --parents compressor --compressor
RUN`. It works with vectors of the --model that it was trained on, and refuses others. At the end stands what to expect
on documents of the same kind: R@5 of sections by sentences of theirs that they do not hold, on documents that neither
trained nor chose it, beside the mean of the children, the target and the best child (every sentence searched, and no
vector of a section). Best child mostly finds most; what a compressor saves is all vectors but one.

Embedding takes minutes, and so does the training of all kinds. The same documents, --seed and machine give the same
compressor.

Of --target summary: {llm_flags.HELP}"""
EXAMPLES = """\
examples:
  qrag fit compressor handbook/ --out runs/compressor
  qrag fit compressor handbook/ wikitext2:articles.jsonl.gz --kind attention --loss ranking --out runs/one --json
  qrag fit compressor handbook/ --target summary --llm_model qwen.gguf --out runs/summaries
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag fit compressor`."""
    parser.usage = "qrag fit compressor PATHS... --out RUN [flags]"
    parser.add_argument("paths", nargs="+", metavar="PATHS", help="files or folders, scisumm:PATH or wikitext2:PATH")
    parser.add_argument("--out", required=True, type=flags.filled, metavar="RUN", help="run folder to write")
    parser.add_argument("--kind", choices=COMPRESSOR_KINDS, help="of the network (default: all are tried)")
    parser.add_argument("--loss", choices=COMPRESSOR_LOSSES, help="what is learned (default: both are tried)")
    parser.add_argument(
        "--target",
        choices=COMPRESSOR_TARGETS,
        default="windows",
        help="what vectors are to be near to (default: %(default)s)",
    )
    parser.add_argument(
        "--lead_tokens",
        type=flags.positive,
        default=SUMMARY_TOKENS,
        metavar="N",
        help="of --target lead (default: %(default)s)",
    )
    flags.add_model(parser, "%(default)s", value="minilm")
    flags.add_seed(parser)
    flags.add_reading(parser)
    flags.add_compile_cache(parser)
    flags.add_json(parser, "what came out as JSON")
    llm_flags.add_llm_flags(parser, max_answer_tokens=SUMMARY_TOKENS)
