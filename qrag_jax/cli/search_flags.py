"""Flags of the verbs that search the user's files. Imports nothing heavy, so the help is fast."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrag_jax.cli import flags
from qrag_jax.errors import UsageError, not_installed
from qrag_jax.files.reading import HTML_PARTS
from qrag_jax.names import RETRIEVERS

if TYPE_CHECKING:
    from qrag_jax.index.index import Index
    from qrag_jax.search.rerank import RerankOptions
    from qrag_jax.service.observing import Observe
    from qrag_jax.service.search import SearchRequest

SHOWN_RETRIEVERS = "hybrid, dense, bm25"  # the last of `RETRIEVERS` is another name of dense
CUTTING = """\
--strategy
--max_tokens N   most tokens of a passage (default: 200; not with a run)
. --points --tagger --sizes
--model M        encoder: minilm, a folder, a .gguf file, a hub id, or multilingual for about 100 languages (default:
                 minilm; not with a run)
. --query_prompt --document_prompt --dim --dtype
"""
CHOICE = """\
--only --exclude --no_ignore --encoding --strict --follow_links --max_input_gb
--html_part --comments --outputs --fields
"""
RERANK = """\
--late           compare the best passages token by token too
. --no_late      do not, where it is the default: with --rerank, or if the index stores token vectors
--rerank MODEL   let a model read the best passage of the best files together with the question, and order them anew
. --rerank_files N     for --rerank: number of files (default: 10)
. --rerank_passages N  for --rerank: read so many of the best passages, whatever their files
. --rerank_weight X    for --rerank: weight of its score beside that of the search (default: as the model needs)
"""
TRACE = """\
. --trace URL      send OpenTelemetry spans of each question to a collector (OTLP over HTTP), for example
                   http://127.0.0.1:4318
. --trace_content  with --trace: send the texts of questions, passages and answers too
"""
RERANK_HELP = """\
--late compares each token of the question with each token of the 24 best passages, as ColBERT does. It reads the
passages again, unless the index was made with `qrag index build --late`. It is the default for such an index and with
--rerank. In the JSON, `late_score` is that score.

--rerank reads a passage and the question together, which takes seconds. MODEL is a folder, a .gguf file, a hub id or
smollm2: a classifier with one output, such as `qrag train reranker` writes, or a language model. Qwen3-Reranker says
whether the passage answers; another one says how likely the question is after the passage, and its score is added to
that of the search. `yesno:MODEL` and `likelihood:MODEL` choose that. In the JSON, `rerank_score` is the model's score.
"""
_REASONS = {
    "strategy": "a run reads sentences",
    **dict.fromkeys(
        ("model", "query_prompt", "document_prompt", "dim", "dtype"), "a run uses the encoder that it was trained with"
    ),
    "top_k": "a run picks --num_steps chunks",
}
WAYS = """\
  hybrid   rank chunks by meaning and by shared words; the default, and right for most texts
  dense    rank chunks by the distance of their vectors to the question's vector (also called single_step)
  bm25     rank chunks by shared words; loads no model
"""
QUESTIONS_HELP = """\
All lines of a --questions file are checked before the search starts; an error names the line. `qrag find` embeds 32 of
them together, which is faster; their cost counts for the first one. Lines from standard input are answered one by one,
until a bad line. With --json each question gives one line.
"""


def search_request(values: Mapping[str, Any], *, run_first: bool = False) -> "SearchRequest":
    """The search request of a command line. Checks names and settings only, and opens no file.

    A run refuses flags for cutting and embedding here; an index refuses them when it is opened.

    Args:
        values: of the flags of `qrag find` or `qrag ask`, with `paths` and `question`.
        run_first: the first path may be a run; it then searches the other paths.

    Raises:
        UsageError: flags or paths that do not go together.
    """
    from qrag_jax.index.sources import is_run
    from qrag_jax.service.cutting import CutOptions
    from qrag_jax.service.search import SearchRequest
    from qrag_jax.types import EncoderOptions

    paths, retriever = values["paths"], values["retriever"]
    first, *rest = paths
    if run_first and is_run(first):
        if retriever is not None:
            raise UsageError(f"{first}: is a run, but --retriever names {retriever}; use only one of the two")
        if not rest:
            raise UsageError(f"{first}: is a run; put the files or folders before the question: RUN PATHS... QUESTION")
        paths, retriever = rest, first
    cuts = flags.made(CutOptions, values)
    reads = flags.made(EncoderOptions, values)
    given = cuts.given + [*reads.given] + ["model"] * (values["model"] is not None)
    given += ["top_k"] * (values.get("top_k") is not None)
    if given and retriever not in (None, *RETRIEVERS):
        reason = _REASONS.get(given[0], _REASONS["strategy"])
        raise UsageError(f"--{given[0]}: works only with --retriever {SHOWN_RETRIEVERS}; {reason}")
    return flags.made(SearchRequest, values, paths=tuple(paths), retriever=retriever, cuts=cuts, reads=reads)


def open_searched(request: "SearchRequest", observe: "Observe | None" = None) -> "Index":
    """Opens the files or the index. For a run, says on standard error which data it was trained on.

    Args:
        observe: told of each search and answer.
    """
    from qrag_jax.cli.progress import WithBar
    from qrag_jax.cli.terminal import say
    from qrag_jax.service.observing import traced
    from qrag_jax.service.search import run_of, trained_on

    index = request.open(WithBar)
    if observe is not None:
        traced(index, observe)
    if (run := run_of(index, request.retriever)) and os.path.isdir(run):  # else the search refuses it
        say(trained_on(run))
    return index


def check_html(values: Mapping[str, Any], index: "Index") -> None:
    """Refuses a page of `--html` that cannot be written, or would replace a document or a file of an index or a run.

    Args:
        values: of the flags.
        index: that is searched.

    Raises:
        UsageError: name another file.
    """
    from qrag_jax.cli.output_paths import STDOUT, check_output
    from qrag_jax.index.sources import is_run, is_stored

    path = values["html"]
    if path is None:
        return
    if path in HTML_PARTS:
        raise UsageError(f"--html {path}: names a file to write; --html_part {path} chooses a part of HTML files")
    if path == STDOUT:
        raise UsageError(f"--html {path}: only --json can print to standard output; name a file")
    check_output(values, "html")
    place = os.path.realpath(path)
    folders = [one for one in (*values["paths"], values["retriever"] or "") if os.path.isdir(one)]
    above = {os.path.realpath(one): one for one in folders if is_stored(one) or is_run(one)}
    if inside := next((above[str(one)] for one in Path(place).parents if str(one) in above), None):
        raise UsageError(f"--html {path}: is in {inside}, which is searched; name a file elsewhere")
    if os.path.isfile(place) and place in map(os.path.realpath, index.documents()):
        raise UsageError(f"--html {path}: is a document that is searched; name another file")


def chosen_levels(planner: str | None, levels: str | None, *, asks_model: bool) -> tuple[str, str | None]:
    """(name of the planner that `--planner` and `--levels` choose, the `levels` of `SearchOptions`).

    Args:
        asks_model: a language model is there to be asked.

    Raises:
        UsageError: the two do not go together, or the planner does not exist.
    """
    name = planner or ("constant" if levels else "")
    if levels and name != "constant":
        raise UsageError(f"--levels {levels}: --planner {name} chooses the levels; use only one of the two")
    if name == "llm" and not asks_model:
        raise UsageError("--planner llm: needs a language model; use `qrag ask` and choose one with --llm_model")
    if name in ("", "constant", "llm"):
        return name, {"constant": levels or "all", "llm": "llm"}.get(name)
    if not os.path.isdir(name):
        raise UsageError(
            f"--planner {name}: neither constant nor llm, and no such folder; give a run, such as one that `qrag train "
            "router --out` wrote"
        )
    return name, f"planner:{name}"


def late_of(args: Any) -> bool | None:
    """True with --late, False with --no_late; None with neither, so that the index decides."""
    if args.late and args.no_late:
        raise UsageError("works only without --late; leave one of the two out", field="--no_late")
    return False if args.no_late else args.late or None


def rerank_options(values: Mapping[str, Any]) -> "RerankOptions | None":
    """How the flags of `RERANK` rerank; progress and cost go to standard error.

    Raises:
        UsageError: a flag needs `--rerank`.
    """
    from qrag_jax.cli.progress import ShownReranker
    from qrag_jax.search.rerank import RerankOptions

    given = {name: values[f"rerank_{name}"] for name in ("files", "passages", "weight")}
    given = {name: value for name, value in given.items() if value is not None}
    if values["rerank"] is None:
        if given:
            raise UsageError(f"--rerank_{next(iter(given))}: works only with --rerank MODEL; add it, or leave this out")
        return None
    return RerankOptions(values["rerank"], show=ShownReranker, **given)


def tracing(values: Mapping[str, Any]) -> "AbstractContextManager[Observe | None]":
    """Sends what it gives as spans while its context is open, as the flags of `TRACE` say; None without `--trace`.

    Raises:
        UsageError: `--trace_content` without `--trace`, no address, or a package is missing.
    """
    if values["trace"] is None:
        if values["trace_content"]:
            raise UsageError("works only with --trace URL; add it, or leave this out", field="--trace_content")
        return nullcontext()
    try:
        from qrag_jax.integrations.otel_sending import send
    except ImportError as error:
        raise not_installed(error.name, "otel") from error
    return send(values["trace"], values["trace_content"])
