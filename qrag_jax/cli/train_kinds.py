"""`qrag train KIND`: small models on vectors of one's own documents, and any learner of `qrag_jax.names.LEARNERS`."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from qrag_jax import service
from qrag_jax.cli import flags, llm_flags
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import write_json
from qrag_jax.names import COMPRESSOR_KINDS, COMPRESSOR_LOSSES, COMPRESSOR_TARGETS, FEATURES, LEARNERS, VIEWS

_SUMMARY_TOKENS = 128
_BUDGET = 512  # of a router

_OF_TAGGER = """\
Learn from documents with headings where sections begin, for documents without them. A tagger reads vectors of
sentences, how alike the text on both sides of a gap is, words, marks and paragraphs; it says for each sentence whether
a section begins there, and of which level, 1 to 3.

PATHS are Markdown files and folders, scisumm:PATH (papers of CL-SciSumm) or wikitext2:PATH (articles).

What comes out, in --out: a checkpoint folder that stands alone, for `qrag chunk --points tagger --tagger RUN` and `qrag
boundaries --methods tagger --tagger RUN`. It works with vectors of the --model that it was trained on, and refuses
others. At the end stands what to expect on documents of the same kind: F1 of exact sentences, each document by a tagger
that had not seen it, with its 95% interval over documents.
"""
_DETAILS_OF_TAGGER = """\
Headings are what is right; what the tagger sees of them is the --view: removed, not at all (for text that has none);
plain, as lines of text; kept, with their marks. Documents without a section are left out of folders and counted, and so
are those that are there twice; a file that has none is refused by name.

Embedding the documents takes minutes, the training after it seconds. The same documents, --seed and machine give the
same tagger.

A tagger is good on the kind of documents that it was trained on. On a kind that it never saw it need not be above
breakpoint: one of papers found less in encyclopedia articles (F1 .14, breakpoint .18), one of articles little in papers
(.10, breakpoint .09); trained on their own kind they reach .47 and .44. Without --tagger, `qrag chunk --points tagger`
takes one that was trained on such papers and articles without their headings. It does not know lines that are headings
(.21 and .05): for those take --points rule, or train with --view plain.
"""
_EXAMPLES_OF_TAGGER = """\
examples:
  qrag train tagger handbook/ --out runs/tagger
  qrag train tagger handbook/ reports/ wikitext2:articles.jsonl.gz --out runs/mixed --seed 1
  qrag chunk plain.txt --strategy hierarchy --points tagger --tagger runs/tagger --max_tokens 200
"""
_OF_COMPRESSOR = """\
Learn to make the vector of a section from the vectors of its sentences, so that a section of any length is searched by
one vector, and no text is embedded twice.

PATHS are Markdown files and folders, scisumm:PATH (papers of CL-SciSumm) or wikitext2:PATH (articles). Their headings
say where sections are, and are removed; a section of one sentence is left out. What a vector is to be near to is the
--target: windows, the whole section in pieces that the encoder reads, averaged; lead, its first --lead_tokens; summary,
what a language model says of it in short.

What comes out, in --out: a checkpoint folder that stands alone, for `qrag index build --parents compressor --compressor
RUN`; and, at the end, what to expect of it on documents of the same kind.
"""
_DETAILS_OF_COMPRESSOR = f"""\
  --kind    mlp: the mean of the children by tokens, plus a network of all; attention: weights of the children that are
            learned; both. Untrained each is the mean
  --loss    distance: the squared distance to the target; ranking: that, and sentences that are taken out of a section
            must find it among others
Without these flags all are tried: documents that are held out choose, by how often such a sentence finds its section.

It works with vectors of the --model that it was trained on, and refuses others. What to expect is R@5 of sections by
sentences of theirs that they do not hold, on documents that neither trained nor chose it, beside the mean of the
children, the target and the best child (every sentence searched, and no vector of a section). Best child mostly finds
most; what a compressor saves is all vectors but one.

Embedding takes minutes, and so does the training of all kinds. The same documents, --seed and machine give the same
compressor.

Of --target summary: {llm_flags.HELP}"""
_EXAMPLES_OF_COMPRESSOR = """\
examples:
  qrag train compressor handbook/ --out runs/compressor
  qrag train compressor handbook/ wikitext2:articles.jsonl.gz --kind attention --loss ranking --out runs/one --json
  qrag train compressor handbook/ --target summary --llm_model qwen.gguf --out runs/summaries
"""
_OF_ROUTER = """\
Learn from questions with evidence which levels of documents (section, paragraph, ... or spans of sizes) a question
should search. For every range of levels the router predicts how much of the evidence a context of --budget tokens will
hold. It leaves the best fixed range only where it predicts to gain more than a margin.

CONFIG is a config of `qrag study`: its tasks give documents, questions and evidence, its model the encoder, its first
strategy of kind levels the levels (by headings where it has none), the first of its parents the vectors of parents.

What comes out, in --out: a checkpoint folder that stands alone, for `qrag study --levels router:RUN`, and for `qrag
find` and `qrag ask` with --router RUN; and, at the end, what to expect of it.

A router seldom pays: docs/study.md says what was measured.
"""
_DETAILS_OF_ROUTER = """\
It predicts from the question's vector, or from the profile of scores of a first cheap search. The margin is chosen with
the strength of its regression on questions that it has not seen, document by document; where nothing is gained it is
that fixed range.

It works with vectors of the encoder and the levels that it was trained on, and refuses others. It learns from searches
by meaning alone: ask with --retriever dense, and of an index with the same parents, if what is said here is to hold.
What to expect is evidence recall of the ranges that it chose for questions that it had not seen, beside the best fixed
range of the same folds; and how many questions have a label, the cheapest range that holds all of their evidence.
"""
_EXAMPLES_OF_ROUTER = """\
examples:
  qrag train router mine.yaml --out runs/router
  qrag train router mine.yaml --budget 1024 --features vectors --out runs/router data=DATA
  qrag study mine.yaml --budgets 512 --levels dev,router:runs/router,bound
  qrag ask levels.index "Who has the key?" --router runs/router --retriever dense
"""


def _add_tagger_flags(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} PATHS... --out RUN [flags]"
    parser.add_argument("paths", nargs="+", metavar="PATHS", help="files or folders, scisumm:PATH or wikitext2:PATH")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    parser.add_argument(
        "--view", choices=VIEWS, default="removed", help="what the tagger sees of the headings (default: %(default)s)"
    )
    flags.add_model(parser, "%(default)s", value="minilm")
    _add_common(parser)
    flags.add_reading(parser)


def _add_compressor_flags(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} PATHS... --out RUN [flags]"
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
        default=_SUMMARY_TOKENS,
        metavar="N",
        help="of --target lead (default: %(default)s)",
    )
    flags.add_model(parser, "%(default)s", value="minilm")
    _add_common(parser)
    flags.add_reading(parser)
    llm_flags.add_llm_flags(parser, max_answer_tokens=_SUMMARY_TOKENS)


def _add_router_flags(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} CONFIG [key=value ...] --out RUN [flags]"
    parser.add_argument("config", metavar="CONFIG", help="config of a study, with tasks of evidence")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the config, as data=DATA")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    parser.add_argument(
        "--budget", type=flags.positive, default=_BUDGET, help="tokens of a context (default: %(default)s)"
    )
    parser.add_argument(
        "--features", choices=FEATURES, help="what it reads of a question (default: the one that held out finds better)"
    )
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    flags.add_seed(parser)
    flags.add_compile_cache(parser)
    flags.add_json(parser, "what came out as JSON")


def _run_tagger(args: argparse.Namespace) -> int:
    return _train("tagger", service.TaggerRequest(tuple(args.paths), args.view, args.model, args.seed), args)


def _run_compressor(args: argparse.Namespace) -> int:
    how = (args.kind, args.loss, args.target, args.lead_tokens, args.model, args.seed)
    llm = llm_flags.llm_config(vars(args))
    return _train("compressor", service.CompressorRequest(tuple(args.paths), *how, llm), args)


def _run_router(args: argparse.Namespace) -> int:
    how = (tuple(args.overrides), args.budget, args.features, args.seed)
    return _train("router", service.RouterRequest(args.config, *how), args)


def _train(name: str, config: Any, args: argparse.Namespace) -> int:
    """Trains a learner into `--out`, and prints what came out."""
    kind = LEARNERS.load(name)
    with Progress() as progress:
        row = {"run": args.out, **kind.train(config, Path(args.out), progress.watch())}
    if args.json:
        write_json(row)
    else:
        print(kind.format(row))
    return 0


WITH_FLAGS = {
    name: Verb(description, examples, add_flags, run, details=details, summary=LEARNERS[name].about)
    for name, description, details, examples, add_flags, run in (
        ("tagger", _OF_TAGGER, _DETAILS_OF_TAGGER, _EXAMPLES_OF_TAGGER, _add_tagger_flags, _run_tagger),
        (
            "compressor", _OF_COMPRESSOR, _DETAILS_OF_COMPRESSOR, _EXAMPLES_OF_COMPRESSOR, _add_compressor_flags,
            _run_compressor,
        ),
        ("router", _OF_ROUTER, _DETAILS_OF_ROUTER, _EXAMPLES_OF_ROUTER, _add_router_flags, _run_router),
    )
}  # fmt: skip


def learner_verb(name: str) -> Verb:
    """The kind of `qrag train` that trains a learner of that name: by flags of its own, or by its config alone."""
    if name in WITH_FLAGS:
        return WITH_FLAGS[name]
    about, line = LEARNERS[name].about, f"qrag train {name}"
    return Verb(
        description=f"""\
Train a learner of the kind {name}: {about}.

Every field of its config has a default or is refused where it is missing; a YAML file and key=value overrides change
some of them, later ones winning. --dry_run prints all of them.

What comes out, in --out: a checkpoint folder that stands alone; and what to expect of it.
""",
        examples=f"examples:\n  {line} --dry_run\n  {line} --config_path mine.yaml --out runs/{name} seed=1\n",
        add_flags=_add_config_flags,
        run=partial(_run_by_config, name),
        summary=about,
    )


def _add_config_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config_path", metavar="X.yaml", help="YAML file with fields of the config")
    flags.add_out(parser, "run folder to write", "%(default)s", value="runs/train")
    flags.add_reading(parser)
    flags.add_compile_cache(parser)
    parser.add_argument("--dry_run", action="store_true", help="print the whole config as YAML and stop")
    flags.add_json(parser, "what came out as JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="a field of the config, as seed=1")


def _run_by_config(name: str, args: argparse.Namespace) -> int:
    from qrag_jax.config import dump_config, load_config
    from qrag_jax.train.run_folder import check_out

    config = load_config(LEARNERS.load(name).config, args.config_path, args.overrides)
    if args.dry_run:
        sys.stdout.write(dump_config(config))
        return 0
    check_out(Path(args.out), resumes=False)
    return _train(name, config, args)
