"""`qrag train KIND`: trains small models on vectors of documents, or any learner of `qrag_jax.names.LEARNERS`."""

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
from qrag_jax.names import (
    COMPRESSOR_KINDS,
    COMPRESSOR_LOSSES,
    COMPRESSOR_TARGETS,
    DECODER_METHODS,
    FEATURES,
    LEARNERS,
    ROUTER_METHODS,
    DecoderMethod,
)

_OF_TAGGER = """\
Train a tagger on documents with headings; it finds sections in documents without them.

A tagger says for each sentence whether a section begins there, and its level, 1 to 3. It reads vectors of sentences,
the similarity of the text before and after a gap, words, punctuation and paragraphs.

PATHS are Markdown files and folders, scisumm:PATH (papers of CL-SciSumm) or wikitext2:PATH (articles).

--out contains a self-contained checkpoint folder for --points tagger --tagger RUN of `qrag chunk` and `qrag index`, and
for `qrag boundaries --methods tagger --tagger RUN`. It works only with vectors of the --model that it was trained on.
The output says what to expect on documents of the same kind: F1 of exact sentences with its 95% interval over
documents. A tagger that did not see a document scores it.
"""
_DETAILS_OF_TAGGER = """\
Headings give the right boundaries. --view says how much of them the tagger sees: removed (nothing; for text without
headings), plain (as lines of text), kept (with their marks). Documents without sections and duplicates are left out of
folders and counted; a file without sections that you name is refused.

Embedding the documents takes minutes, training takes seconds. The same documents, --seed and machine give the same
tagger.

A tagger works well on the kind of documents that it was trained on. On other kinds it may be no better than breakpoint:
one trained on papers reached F1 .14 on encyclopedia articles (breakpoint .18), one trained on articles .10 on papers
(breakpoint .09); trained on their own kind they reach .47 and .44. Without --tagger, `qrag chunk --points tagger` uses
a tagger trained on such papers and articles without their headings. It does not recognise lines that are headings (.21
and .05); for those use --points rule, or train with --view plain.
"""
_EXAMPLES_OF_TAGGER = """\
examples:
  qrag train tagger handbook/ --out runs/tagger
  qrag train tagger handbook/ reports/ wikitext2:articles.jsonl.gz --out runs/mixed --seed 1
  qrag chunk plain.txt --strategy hierarchy --points tagger --tagger runs/tagger --max_tokens 200
"""
_OF_COMPRESSOR = """\
Train a compressor, which computes the vector of a section from the vectors of its sentences.

A section of any length then has one vector to search, and no text is embedded twice.

PATHS are Markdown files and folders, scisumm:PATH (papers of CL-SciSumm) or wikitext2:PATH (articles). Their headings
mark the sections and are then removed. Sections of one sentence are left out. --target is the vector to learn: windows
(mean vector of the whole section in pieces that the encoder reads), lead (the first --lead_tokens) or summary (a
summary by a language model).

--out contains a self-contained checkpoint folder for `qrag index build --parents compressor --compressor RUN`. The
output says what to expect on documents of the same kind.
"""
_DETAILS_OF_COMPRESSOR = f"""\
  --kind    mlp: the mean of the children by tokens, plus a network; attention: learned weights of the children; both.
            Before training, each is the mean
  --loss    distance: the squared distance to the target; ranking: also, a sentence taken out of a section must find
            that section among others
Without these flags all are tried. Held-out documents choose the one whose sections such sentences find most often.

A compressor works only with vectors of the --model that it was trained on. The expected quality is R@5: sentences that
were taken out of sections search for their sections, on documents that neither trained nor chose the compressor. It is
shown next to the mean of the children, the target and the best child (search every sentence; the section has no
vector). The best child usually finds most; a compressor stores one vector for a section instead of many.

Embedding takes minutes, and so does training all kinds. The same documents, --seed and machine give the same
compressor.

For --target summary: {llm_flags.HELP}"""
_EXAMPLES_OF_COMPRESSOR = """\
examples:
  qrag train compressor handbook/ --out runs/compressor
  qrag train compressor handbook/ wikitext2:articles.jsonl.gz --kind attention --loss ranking --out runs/one --json
  qrag train compressor handbook/ --target summary --llm_model qwen.gguf --out runs/summaries
"""
_OF_ROUTER = """\
Train a router, which chooses the levels of documents to search for a question, from questions with evidence.

Levels are section, paragraph, ... or spans of --sizes. For every range of levels, the router predicts the share of the
evidence in a context of --budget tokens, or (--method classifier) how likely the range is to be the best. It leaves the
best fixed range only if it predicts a gain above a margin. A router rarely pays off: docs/reference/study.md has the
measurements.

CONFIG is a config of `qrag study`. Its tasks give documents, questions and evidence; its model is the encoder; its
first strategy of kind levels gives the levels (by headings if there is none); its first parents give the vectors of
sections.

--out contains a self-contained checkpoint folder, for `qrag study --levels planner:RUN` and for `qrag find` and
`qrag ask` with --planner RUN. The output says what to expect.
"""
_DETAILS_OF_ROUTER = """\
The router reads the question's vector, or the scores of a first cheap search (a profile). Questions that it has not
seen choose the margin and the penalty on its weights, one document at a time. If nothing is gained, the margin is
infinite and the router is the fixed range.

A router works only with the encoder and the levels that it was trained on. It learns from searches by meaning, so ask
with --retriever dense, and use an index with the same parents. The output shows evidence recall of the ranges that it
chose for unseen questions, next to the best fixed range of the same folds, and how many questions have a label (the
cheapest range that contains all of their evidence).
"""
_EXAMPLES_OF_ROUTER = """\
examples:
  qrag train router mine.yaml --out runs/router
  qrag train router mine.yaml --budget 1024 --features vectors --out runs/router data=DATA
  qrag study mine.yaml --budgets 512 --levels dev,planner:runs/router,bound
  qrag ask levels.index "Who has the key?" --planner runs/router --retriever dense
"""
_OF_RERANKER = """\
Train a reranker, which reads question and passage together and puts the passage that answers first.

PAIRS are lines of JSON: {"question": ..., "positive": ..., "negatives": [...]}. Where a question has fewer than three
negatives, passages of other questions fill up. --model is an encoder, which gets a new head, or a reranker to go on
with (a sequence classifier with one output).

--out becomes an ordinary model folder for --rerank RUN of `qrag find` and `qrag ask`, and for sentence-transformers'
CrossEncoder. The output says for how many held-out questions the right passage stands first.
"""
_DETAILS_OF_RERANKER = """\
--lora_rank N trains low-rank changes of all layers instead of all parameters (LoRA); they are merged into the folder.
A tenth of the questions, or about 500 of many, is held out. metrics.jsonl has the loss. Train on questions about
documents of the kind that you search.
"""
_EXAMPLES_OF_RERANKER = """\
examples:
  qrag train reranker pairs.jsonl --out runs/reranker
  qrag train reranker pairs.jsonl --model BAAI/bge-reranker-base --lora_rank 8 --out runs/mine --json
  qrag find notes.index "Who has the key?" --rerank runs/reranker
"""
_OF_DECODER = """\
Train {about}.

  sft     imitates the answers of its records, or the traces of a teacher
  grpo    draws a group of answers to each prompt, and moves towards those with more reward than their group (GRPO)
  stitch  as grpo; where no answer of a group is correct it asks again with a hint of a teacher's trace, and it imitates
          the traces of prompts that stay unsolved (STITCH of SmartChunk)

CONFIG is a YAML file; --dry_run prints every field. The fields of the three kinds are the same: sft_first=true puts an
imitation phase before grpo or stitch. Records are lines of JSON: {{"messages": [...], "answer": "..." or null, "label":
...}}, or chats whose last message is the answer. Rewards are functions of the answers, with weights in the config.

--out contains the trained model as an ordinary model folder, which works wherever a model is named (--llm_model RUN);
if it plans, also as --planner RUN. results.json has its score on held-out records and what the training cost.
"""
_DETAILS_OF_DECODER = """\
A run saves every save_every updates. --resume continues from the newest undamaged checkpoint with the same config and
data: every later update is the same bit for bit, also in the middle of an imitation phase. The page
docs/how_to/train_decoders.md explains the fields, and which method was worth its cost.
"""
_EXAMPLES_OF_DECODER = """\
examples:
  qrag train stitch configs/planner/controlled.yaml --out runs/stitch seed=0
  qrag train grpo configs/planner/controlled.yaml --out runs/both sft_first=true imitation.traces=100
  qrag train sft configs/hichunk/sft.yaml --out runs/hichunk 'data.paths=[train.jsonl]'
"""
_COMMON = "--seed --no_compile_cache\n--json  print the result as JSON\n"
_HEADED = """\
paths PATHS ...  files or folders, scisumm:PATH or wikitext2:PATH
--out! RUN       run folder to write
"""
_TAGGER_FLAGS = f"""\
{_HEADED}--view = removed  how much of the headings the tagger sees
--model --follow_links --max_input_gb
{_COMMON}"""
_COMPRESSOR_FLAGS = f"""\
{_HEADED}--kind                  kind of network (default: try all)
--loss                  loss to minimise (default: try both)
--target = windows      vectors to learn
--lead_tokens N = 128   for --target lead: tokens at the beginning of a section
--model --follow_links --max_input_gb
{_COMMON}{llm_flags.llm_table(128)}"""
_RERANKER_FLAGS = f"""\
paths PAIRS ...      files of questions with passages
--out! RUN           folder to write
--model M = minilm   encoder or reranker to start from: minilm, a folder or a hub id
--epochs N = 2       times that every question is seen
--learning_rate X    of AdamW (default: 0.00005, or 0.0005 with --lora_rank)
--lora_rank I = 0    rank of low-rank changes; 0 trains all parameters
{_COMMON}"""
_ROUTER_FLAGS = f"""\
config CONFIG              config of a study, with tasks that have evidence
overrides [key=value ...]  changes of the config, such as data=DATA
--out! RUN                 run folder to write
--budget N = 512           tokens of a context
--features                 what it reads of a question (default: the better one on held-out questions)
--method = regression      what it learns
{_COMMON}"""
_DECODER_FLAGS = """\
config CONFIG              YAML file with fields of the config
overrides [key=value ...]  changes of fields, such as seed=1
--out! RUN                 run folder to write
--resume                   continue the run in --out, if there is one
--dry_run                  print the whole config as YAML and stop
--no_compile_cache
--json                     print the result as JSON
"""
_CONFIG_FLAGS = """\
--config_path X.yaml       YAML file with fields of the config
--out RUN = runs/train     run folder to write
--follow_links --max_input_gb --no_compile_cache
--dry_run                  print the whole config as YAML and stop
--json                     print the result as JSON
overrides [key=value ...]  changes of fields, such as seed=1
"""


def _run_tagger(args: argparse.Namespace) -> int:
    return _train("tagger", made(service.TaggerRequest, vars(args)), args)


def _run_compressor(args: argparse.Namespace) -> int:
    llm = llm_flags.llm_config(vars(args))
    return _train("compressor", made(service.CompressorRequest, vars(args), llm=llm), args)


def _run_reranker(args: argparse.Namespace) -> int:
    return _train("reranker", made(service.RerankerRequest, vars(args)), args)


def _run_router(args: argparse.Namespace) -> int:
    return _train("router", made(service.RouterRequest, vars(args)), args)


def _run_decoder(name: DecoderMethod, args: argparse.Namespace) -> int:
    request = made(service.DecoderRequest, vars(args))
    if args.dry_run:
        from qrag_jax.config import dump_config

        sys.stdout.write(dump_config(service.decoder_config(request, name)))
        return 0
    return _train(name, request, args)


def _train(name: str, config: Any, args: argparse.Namespace) -> int:
    """Trains a learner into `--out` and prints the result."""
    kind = LEARNERS.load(name)
    with Progress() as progress:
        row = {"run": args.out, **kind.train(config, Path(args.out), progress.watch())}
    if args.json:
        write_json(row)
    else:
        print(kind.format(row))
    return 0


_OF_PATHS, _OF_CONFIG = "PATHS... --out RUN [flags]", "CONFIG [key=value ...] --out RUN [flags]"
_OF_PAIRS = "PAIRS... --out RUN [flags]"
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
_RERANKER = Verb(
    _OF_RERANKER, _EXAMPLES_OF_RERANKER, _RERANKER_FLAGS, _run_reranker, _DETAILS_OF_RERANKER, usage=_OF_PAIRS
)
_ROUTER = Verb(
    _OF_ROUTER,
    _EXAMPLES_OF_ROUTER,
    _ROUTER_FLAGS,
    _run_router,
    _DETAILS_OF_ROUTER,
    {"features": FEATURES, "method": ROUTER_METHODS},
    usage=_OF_CONFIG,
)
_DECODERS = {
    name: Verb(
        _OF_DECODER.format(about=LEARNERS[name].about),
        _EXAMPLES_OF_DECODER,
        _DECODER_FLAGS,
        partial(_run_decoder, name),
        _DETAILS_OF_DECODER,
        usage=_OF_CONFIG,
    )
    for name in DECODER_METHODS
}
_OWN = {"tagger": _TAGGER, "compressor": _COMPRESSOR, "reranker": _RERANKER, "router": _ROUTER, **_DECODERS}
WITH_FLAGS = {name: replace(verb, summary=LEARNERS[name].about) for name, verb in _OWN.items()}


def learner_verb(name: str) -> Verb:
    """The kind of `qrag train` for a learner: with its own flags, or with its config only.

    Args:
        name: of `names.LEARNERS`.
    """
    if name in WITH_FLAGS:
        return WITH_FLAGS[name]
    about, line = LEARNERS[name].about, f"qrag train {name}"
    return Verb(
        description=f"""\
Train a learner of the kind {name}: {about}.

A YAML file and key=value overrides set the fields of its config; later ones win. A required field that is missing is
refused. --dry_run prints all fields.

--out contains a self-contained checkpoint folder. The output says what to expect.
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
