"""`qrag chunk`: cuts files by any strategy; each chunk has its exact offsets, level and number of tokens."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.cli import llm_flags
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say, shown
from qrag_jax.names import BOUNDARY_SOURCES, CHUNKERS, SPLITTERS
from qrag_jax.types import Chunk, Document, UsageError

if TYPE_CHECKING:
    from qrag_jax.chunking.chunker import ChunkConfig
    from qrag_jax.service.chunking import Cut, Cutter

_TREE, _HIERARCHY, _LEVELS = "tree", "hierarchy", "levels"  # tree is not a strategy of a config
_MAKE_TREES = CHUNKERS.choices("tree")
_BY_POINTS = CHUNKERS.choices("points")
_OWNERS = {"points": _BY_POINTS, "tagger": _BY_POINTS, "level_cap": (_HIERARCHY,), "sizes": (_LEVELS,)}
_MAX_SHOWN = 60  # characters of a chunk in a line

_DESCRIPTION = """\
Cut files into chunks with exact offsets and a hard token limit (--max_tokens).

The strategies fixed, recursive and late fill each chunk up to the limit. If you set neither a limit nor a size, the
limit is 256 tokens. Rows of Markdown tables stay whole where they fit.

The output is one line for each chunk: file:start-end (file:0-9,20-31 for two spans), level, tokens and first words. The
strategy tree indents each chunk under its parent. Level 0 is a whole document, 1 a part of it, 2 a part of a part.

--json gives one object on each line: {"id", "file", "spans": [[start, end], ...], "level", "num_tokens"}, "page"
for a PDF, and "context" for a chunk that begins inside a table: the heading above it and the names of its columns.
Offsets count characters of the decoded text, and end is exclusive. --help_all describes the strategies.
"""
_DETAILS = f"""\
{CHUNKERS.help()}\
  tree        all levels together: the file, its sections, their paragraphs, lists, tables and code blocks, and pieces
              of any that exceed --max_tokens, or 256 tokens; only leaves obey the limit (headings.max_level)

The decoded text keeps all line ends and drops a byte order mark. In Python it is open(file, encoding="utf-8-sig",
newline="").read(). The text of a chunk is the text of its spans, joined by line breaks. Its tokens are counted by the
tokenizer of --model, without special tokens. (MiniLM reads a word of more than 100 characters as one unknown token; it
is counted as more, and cut.) The same text under the same path gives the same ids. Only breakpoint, linkage, dbscan and
--vectors load the model itself.

All files are read before the first is cut. A bad file in a folder (wrong encoding, a zero byte, only white space) is
skipped with a warning. If you named the file itself, or with --strict, the command stops and prints nothing. --html,
--tree and --vectors are written when all files are done. A --tree file contains the trees of all files in order; Python
reads it with qrag_jax.chunking.tree.tree_files.load_trees(file).

{llm_flags.POINTS_HELP}
{llm_flags.HELP}"""
_EXAMPLES = """\
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
_FLAGS = f"""\
paths FILE ...             files (text, code, PDF, HTML, DOCX, ODT, EPUB, mails, tables, JSON), folders, or - (stdin)
--strategy                 how to cut (default: fixed; tree with --tree)
--points                   for hierarchy and levels: where section boundaries come from (default: headings; tagger with
                           --tagger)
--tagger --sizes
--level_cap N              for hierarchy: deepest level (default: no limit)
--max_tokens N             most tokens of a chunk (default: 256; no limit for breakpoint, linkage, dbscan, headings and
                           document, and with a size of the strategy itself)
--min_tokens N             join chunks smaller than N tokens (default: none)
--config_path X.yaml       YAML file with parameters of the strategies
--set key=value+           set one parameter, for example linkage.lambda_=0.3; may be repeated
--model --exclude --no_ignore --encoding --strict --follow_links --max_input_gb
. --html_part PART         page or article of HTML files, as in `qrag find`; --html article works too
--comments --outputs --fields
. --splitter = sentencex   how to split text into sentences
. --language L = en        language of the sentences, for example de or zh
--json                     print one JSON object on each line
--text                     print the text of one file as it is read; cut nothing
--html OUT.html            write a page that colours the chunks in the text
--tree,--trees OUT.parquet  write the trees of all files, as .parquet or .arrow
--vectors OUT.npy          for late: write the vectors, float32 [chunks, dim], in the order of the lines
{llm_flags.POINTS}"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.annotate.ask_chunks import Estimated
    from qrag_jax.chunking.chunker import ChunkConfig
    from qrag_jax.chunking.text.sentences import make_splitter
    from qrag_jax.cli.llm_output import format_estimate, shown_tools
    from qrag_jax.config import load_config
    from qrag_jax.documents.read import read_files
    from qrag_jax.files.reading import HTML_PARTS, read_with
    from qrag_jax.service.chunking import ChunkRequest, Cut, make_cutter

    config = load_config(ChunkConfig, args.config_path, _overrides(args))
    all_nodes = _wants_tree(args, config.strategy)
    if args.vectors and (all_nodes or config.strategy != "late"):
        strategy = _TREE if all_nodes else config.strategy
        raise UsageError(f"--vectors: strategy {strategy} makes no vectors; choose --strategy late")
    split = make_splitter(args.splitter, args.language)
    request = made(
        ChunkRequest, vars(args), config=config, split=split, all_nodes=all_nodes, vectors=bool(args.vectors)
    )
    if args.html in HTML_PARTS:  # as in the other verbs
        args.html, args.html_part = None, args.html
    with read_with(html=args.html_part):
        documents = read_files(args.paths, args.encoding, strict=args.strict)
    if args.text:
        return _print_text(documents)
    _check_outputs(documents, {"--html": args.html, "--tree": args.tree, "--vectors": args.vectors})
    _check_points(args, config, request.points)
    try:
        cutter = make_cutter(request, documents, shown_tools(vars(args)))
    except Estimated as one:
        print(f"boundaries by {one.name}: {format_estimate(one.estimate, vars(args))}; nothing was asked (--estimate)")
        return 0
    written: list[Cut] = []
    for document in documents:
        cut = _cut(cutter, document)
        shape = format_json if args.json else partial(format_text, indent=all_nodes)
        sys.stdout.write(shape(document, cut.chunks))
        sys.stdout.flush()
        written += [cut] if args.html or args.tree or args.vectors else []
    _write(written, args)
    if cutter.embedder is not None and (counts := cutter.embedder.counts).num_texts_cut:
        say(
            f"{counts.num_texts_cut:,} of {counts.num_texts:,} texts are longer than the {cutter.embedder.window} "
            f"tokens that {args.model} reads; only their beginning was compared"
        )
    return 0


def _cut(cutter: "Cutter", document: Document) -> "Cut":
    """Cuts one document. Shows a progress bar while it is embedded, and warnings on standard error."""
    from qrag_jax.cli.progress import Progress

    embedder = cutter.embedder
    with Progress(transient=True) as progress:
        if cutter.request.vectors:
            progress.note(f"vectors of {shown(document.id)}")
        embed = None if embedder is None else lambda texts: embedder(texts, progress.stage("embed"))
        cut = cutter.cut(document, embed)
    for warning in cut.warnings:
        say(f"{document.id}: {warning}")
    return cut


def _write(cuts: "Sequence[Cut]", args: argparse.Namespace) -> None:
    """Writes the output files for all documents together."""
    import numpy as np

    from qrag_jax.chunking.html_page import html_page
    from qrag_jax.chunking.tree.tree_files import save_trees
    from qrag_jax.files.vector_files import write_vectors
    from qrag_jax.files.whole_file import write_whole

    if args.html:
        write_whole(args.html, "".join(html_page([(cut.document, cut.chunks) for cut in cuts])))
    if args.tree:
        save_trees([cut.tree for cut in cuts if cut.tree is not None], args.tree)
    if args.vectors:
        write_vectors(args.vectors, np.concatenate([cut.vectors for cut in cuts if cut.vectors is not None]))


def _check_points(args: argparse.Namespace, config: "ChunkConfig", points: str | None) -> None:
    if config.strategy == _LEVELS and config.levels.sizes:
        if given := next((f"--{name}" for name in ("points", "tagger") if getattr(args, name)), None):
            sizes = ",".join(map(str, config.levels.sizes))
            raise UsageError(f"{given}: levels of {sizes} tokens have no sections; leave out this flag or the sizes")
    llm_flags.check_points_flags(vars(args), [] if points is None else [points])


def _wants_tree(args: argparse.Namespace, configured: str) -> bool:
    """True if the flags ask for all tree nodes instead of chunks; `--strategy tree` overrides a config."""
    strategy = args.strategy or configured
    makes_trees = strategy in _MAKE_TREES
    for name, owners in _OWNERS.items():
        if getattr(args, name) and strategy not in owners:
            belongs = f"works only with --strategy {' or '.join(owners)}"
            raise UsageError(f"--{name}: {belongs}; choose that strategy, or drop this option")
    if args.tree and args.strategy != _TREE and not makes_trees:
        is_told = any(text.removeprefix("--").startswith("strategy=") for text in args.set)
        # A config file may contain all fields, including those at their defaults.
        if args.strategy or is_told or configured != "fixed":
            raise UsageError(
                f"--tree: strategy {configured} makes no tree; choose --strategy {', '.join((_TREE, *_MAKE_TREES))}, "
                "or set no strategy (in --strategy, --set or --config_path)"
            )
    if args.tree:
        from qrag_jax.chunking.tree.tree_files import check_kind

        check_kind(Path(args.tree))
    return args.strategy == _TREE or (bool(args.tree) and not makes_trees)


def _overrides(args: argparse.Namespace) -> list[str]:
    """The changes that `--set` and the flags make to the config; a flag overrides `--set`."""
    strategy = "headings" if args.strategy == _TREE else args.strategy  # a tree cuts its leaves by headings
    points = args.points or ("tagger" if args.tagger else None)  # for any strategy
    flags = {
        "strategy": strategy,
        "max_tokens": args.max_tokens,
        "min_tokens": args.min_tokens,
        **{f"{name}.points": points for name in _BY_POINTS},
        "hierarchy.level_cap": args.level_cap,
        "levels.sizes": None if args.sizes is None else list(args.sizes),
    }
    return [*args.set, *(f"{name}={value}" for name, value in flags.items() if value is not None)]


def _check_outputs(documents: Sequence[Document], outputs: dict[str, str | None]) -> None:
    """Refuses output files that would replace an input or another output, before anything is computed.

    Args:
        outputs: flag -> path, or None if it was not given.
    """
    from qrag_jax.documents.read import STDIN

    taken = {os.path.realpath(document.id): "an input file" for document in documents if document.id != STDIN}
    for flag, path in outputs.items():
        if path is None:
            continue
        real = os.path.realpath(path)
        if os.path.isdir(real) or real in taken:
            what = taken.get(real, "a folder")
            raise UsageError(f"{flag} {path}: is {what}; name another file")
        _check_writable(flag, path)
        taken[real] = f"the output of {flag}"


def _print_text(documents: Sequence[Document]) -> int:
    from qrag_jax.cli.output import printable

    if len(documents) > 1:
        raise UsageError(f"--text: prints the text of one file, but there are {len(documents):,}; name one of them")
    print(printable(documents[0].text))
    return 0


def _check_writable(flag: str, path: str) -> None:
    """Creates the folder of a file and tries to write there, since the work may take hours. Leaves no empty file."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        is_new = not os.path.lexists(path)
        with open(path, "ab"):
            pass
        if is_new:
            os.unlink(path)
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be written ({error.strerror}); name another file") from error


def format_json(document: Document, chunks: Sequence[Chunk]) -> str:
    """Formats chunks as JSON Lines in ASCII, so any file name survives any terminal."""
    from qrag_jax.chunking.text.tables import context_of
    from qrag_jax.documents.read import page_of

    rows = [
        {
            "id": chunk.id,
            "file": document.id,
            "spans": [[start, end] for start, end in chunk.spans],
            "level": chunk.level,
            "num_tokens": chunk.num_tokens,
        }
        | ({"context": context} if (context := context_of(document.text, chunk.spans)) else {})
        | ({} if (page := page_of(document, chunk.spans[0][0])) is None else {"page": page})
        for chunk in chunks
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def format_text(document: Document, chunks: Sequence[Chunk], *, indent: bool = False) -> str:
    """Formats chunks as aligned lines: `file:start-end` (`file:0-9,20-31` for two spans), level, tokens, first words.

    Args:
        chunks: in the order of the lines.
        indent: indent each chunk by two spaces per level, to show its parent.
    """
    from qrag_jax.eval.tables import align

    name = shown(document.id)
    rows = [
        (
            f"{name}:{','.join(f'{start}-{end}' for start, end in chunk.spans)}",
            str(chunk.level),
            str(chunk.num_tokens),
            "  " * (chunk.level if indent else 0) + _beginning(document.text, chunk),
        )
        for chunk in chunks
    ]
    return "".join(line + "\n" for line in align(rows, (False, True, True, False)))


def _beginning(text: str, chunk: Chunk) -> str:
    """The first words of a chunk on one line."""
    start, end = chunk.spans[0]
    plain = " ".join(text[start : min(end, start + 4 * _MAX_SHOWN)].split())
    whole = len(plain) <= _MAX_SHOWN and end <= start + 4 * _MAX_SHOWN and len(chunk.spans) == 1
    return shown(plain if whole else plain[: _MAX_SHOWN - 3] + "...")


VERB = Verb(
    _DESCRIPTION,
    _EXAMPLES,
    _FLAGS,
    _run,
    details=_DETAILS,
    choices={
        "strategy": (*CHUNKERS, _TREE),
        "points": BOUNDARY_SOURCES.choices("tree"),
        "splitter": SPLITTERS,
    },
)
