"""`qrag train KIND`: small models on vectors of one's own documents, and any learner of `qrag_jax.names.LEARNERS`."""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qrag_jax import service
from qrag_jax.cli import llm_flags
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import write_json
from qrag_jax.names import COMPRESSOR_KINDS, COMPRESSOR_LOSSES, COMPRESSOR_TARGETS, FEATURES, LEARNERS

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

A router seldom pays: docs/reference/study.md says what was measured.
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
_COMMON = "--seed --no_compile_cache\n--json  print what came out as JSON\n"
_HEADED = """\
paths PATHS ...  files or folders, scisumm:PATH or wikitext2:PATH
--out! RUN       run folder to write
"""
_TAGGER_FLAGS = f"""\
{_HEADED}--view = removed  what the tagger sees of the headings
--model --follow_links --max_input_gb
{_COMMON}"""
_COMPRESSOR_FLAGS = f"""\
{_HEADED}--kind                  of the network (default: all are tried)
--loss                  what is learned (default: both are tried)
--target = windows      what vectors are to be near to
--lead_tokens N = 128   of --target lead
--model --follow_links --max_input_gb
{_COMMON}{llm_flags.llm_table(128)}"""
_ROUTER_FLAGS = f"""\
config CONFIG              config of a study, with tasks of evidence
overrides [key=value ...]  changes of the config, as data=DATA
--out! RUN                 run folder to write
--budget N = 512           tokens of a context
--features                 what it reads of a question (default: the one that held out finds better)
{_COMMON}"""
_CONFIG_FLAGS = """\
--config_path X.yaml       YAML file with fields of the config
--out RUN = runs/train     run folder to write
--follow_links --max_input_gb --no_compile_cache
--dry_run                  print the whole config as YAML and stop
--json                     print what came out as JSON
overrides [key=value ...]  a field of the config, as seed=1
"""


def _run_tagger(args: argparse.Namespace) -> int:
    return _train("tagger", made(service.TaggerRequest, vars(args)), args)


def _run_compressor(args: argparse.Namespace) -> int:
    llm = llm_flags.llm_config(vars(args))
    return _train("compressor", made(service.CompressorRequest, vars(args), llm=llm), args)


def _run_router(args: argparse.Namespace) -> int:
    return _train("router", made(service.RouterRequest, vars(args)), args)


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


_OF_PATHS, _OF_CONFIG = "PATHS... --out RUN [flags]", "CONFIG [key=value ...] --out RUN [flags]"
_OF_VECTORS = {"kind": COMPRESSOR_KINDS, "loss": COMPRESSOR_LOSSES, "target": COMPRESSOR_TARGETS}
_TAGGER = Verb(_OF_TAGGER, _EXAMPLES_OF_TAGGER, _TAGGER_FLAGS, _run_tagger, _DETAILS_OF_TAGGER, usage=_OF_PATHS)
_COMPRESSOR = Verb(
    _OF_COMPRESSOR,
    _EXAMPLES_OF_COMPRESSOR,
    _COMPRESSOR_FLAGS,
    _run_compressor,
    _DETAILS_OF_COMPRESSOR,
    _OF_VECTORS,
    usage=_OF_PATHS,
)
_ROUTER = Verb(
    _OF_ROUTER,
    _EXAMPLES_OF_ROUTER,
    _ROUTER_FLAGS,
    _run_router,
    _DETAILS_OF_ROUTER,
    {"features": FEATURES},
    usage=_OF_CONFIG,
)
_OWN = {"tagger": _TAGGER, "compressor": _COMPRESSOR, "router": _ROUTER}
WITH_FLAGS = {name: replace(verb, summary=LEARNERS[name].about) for name, verb in _OWN.items()}


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
        flags=_CONFIG_FLAGS,
        run=partial(_run_by_config, name),
        summary=about,
    )


def _run_by_config(name: str, args: argparse.Namespace) -> int:
    from qrag_jax.config import dump_config, load_config
    from qrag_jax.train.run_folder import check_out

    config = load_config(LEARNERS.load(name).config, args.config_path, args.overrides)
    if args.dry_run:
        sys.stdout.write(dump_config(config))
        return 0
    check_out(Path(args.out), resumes=False)
    return _train(name, config, args)
