"""`qrag chunk`: text files cut by any strategy, each chunk with its exact place, level and number of tokens."""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker, make_tree_builder
from qrag_jax.chunking.html_page import html_page
from qrag_jax.chunking.strategies.late import late_vectors
from qrag_jax.chunking.text.blocks import make_unit_splitter
from qrag_jax.chunking.text.chunks import SentenceText, SplitSentences
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.chunking.tree.boundaries import PredictPoints, predict_at_once
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.chunking.tree.tree_files import check_kind, save_trees
from qrag_jax.cli.note_readers import Estimated
from qrag_jax.cli.parsers.chunk import TREE
from qrag_jax.cli.points_llm import check_points_llm_flags
from qrag_jax.cli.points_sources import PointTools, check_tagger_flag, make_source
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, shown
from qrag_jax.config import load_config
from qrag_jax.documents.read import STDIN, page_of, read_files
from qrag_jax.eval.tables import align
from qrag_jax.files.vector_files import write_vectors
from qrag_jax.files.whole_file import write_whole
from qrag_jax.models.encoder.sources import find_folder
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.names import CHUNKERS, PointsName
from qrag_jax.types import Chunk, Document, UsageError

if TYPE_CHECKING:  # it imports JAX, and most strategies read no vectors
    from qrag_jax.models.encoder.embedder import TextEmbedder

HIERARCHY, LEVELS = "hierarchy", "levels"
_OWNERS = {
    "points": CHUNKERS.choices("tree"),
    "tagger": CHUNKERS.choices("tree"),
    "level_cap": (HIERARCHY,),
    "sizes": (LEVELS,),
}
_MOST_SHOWN = 60  # characters of a chunk in a line


@dataclass(frozen=True)
class Reader:
    """What reads texts: a tokenizer that every strategy counts with, and an encoder where vectors are needed."""

    tokenizer: TextTokenizer
    embedder: "TextEmbedder | None" = None


def run(args: argparse.Namespace) -> int:
    """Runs `qrag chunk`; see `qrag chunk --help`."""
    config = load_config(ChunkConfig, args.config_path, overrides(args))
    is_tree = _wants_tree(args, config.strategy)
    if args.vectors and (is_tree or config.strategy != "late"):
        strategy = TREE if is_tree else config.strategy
        raise UsageError(f"--vectors: strategy {strategy} has no vectors of its own; choose --strategy late")
    split = make_splitter(args.splitter, args.language)
    documents = read_files(args.paths, args.encoding, strict=args.strict)
    check_outputs(documents, {"--html": args.html, "--tree": args.tree, "--vectors": args.vectors})
    reader = _load_reader(args.model, config, with_vectors=bool(args.vectors))
    points = None if is_tree else _points_of(args, config)
    makes_trees = is_tree or config.strategy in CHUNKERS.choices("tree")
    if points is not None:
        check_tagger_flag(args, [points])
    check_points_llm_flags(args, [] if points is None else [points])
    try:
        predict = None if points is None else _find_points(args, points, documents, split)
    except Estimated as estimate:
        print(f"{estimate}; nothing is asked (--estimate)")
        return 0
    build = make_tree_builder(config, reader.tokenizer.count, split, predict) if makes_trees else None
    done: list[tuple[Document, list[Chunk]]] = []
    vectors: list[np.ndarray] = []
    trees: list[ChunkTree] = []
    for document in documents:
        if build is not None:
            trees.append(build(document))
            chunks_of = trees[-1].node_chunks if is_tree else trees[-1].chunks
            chunks, found = chunks_of(document, reader.tokenizer.count), None
        else:
            chunks, found = _chunk_document(document, config, reader, split, with_vectors=bool(args.vectors))
        sys.stdout.write(format_json(document, chunks) if args.json else format_text(document, chunks, indent=is_tree))
        sys.stdout.flush()
        vectors += [] if found is None else [found]
        done += [(document, chunks)] if args.html else []
    if args.html:
        write_whole(args.html, "".join(html_page(done)))
    if args.tree:
        save_trees(trees, args.tree)
    if args.vectors:
        write_vectors(args.vectors, np.concatenate(vectors))
    _say_what_was_cut(reader, args.model)
    return 0


def _points_of(args: argparse.Namespace, config: ChunkConfig) -> PointsName | None:
    """The source of points that a strategy asks; None where it asks none."""
    if config.strategy != LEVELS:
        return config.hierarchy.points if config.strategy == HIERARCHY else None
    if not config.levels.sizes:
        return config.levels.points
    if given := next((f"--{name}" for name in ("points", "tagger") if getattr(args, name)), None):
        sizes = ",".join(map(str, config.levels.sizes))
        raise UsageError(f"{given}: levels of {sizes} tokens know no sections; leave it out, or the sizes")
    return None


def _find_points(
    args: argparse.Namespace, points: PointsName, documents: Sequence[Document], split: SplitSentences
) -> PredictPoints:
    """A source that knows the points of all documents, which it was shown together."""
    units = make_unit_splitter(split)
    texts = [SentenceText(document.text, tuple(units(document.text))) for document in documents]
    source = make_source(points, PointTools(args))
    return predict_at_once(source, texts, [document.id for document in documents])


def _wants_tree(args: argparse.Namespace, configured: str) -> bool:
    """Whether flags ask for all nodes of trees in place of chunks; `--strategy tree` wins over a config."""
    strategy = args.strategy or configured
    makes_trees = strategy in CHUNKERS.choices("tree")
    for name, owners in _OWNERS.items():
        if getattr(args, name) and strategy not in owners:
            raise UsageError(f"--{name}: belongs to --strategy {' or '.join(owners)}; choose that, or leave it out")
    if args.tree and args.strategy != TREE and not makes_trees:
        is_told = any(text.removeprefix("--").startswith("strategy=") for text in args.set)
        # A config file may have all fields, those with their defaults too.
        if args.strategy or is_told or configured != ChunkConfig.strategy:
            raise UsageError(
                f"--tree: strategy {configured} makes no tree; leave --strategy, and strategy of --set and "
                f"--config_path, out, or choose --strategy {TREE}, {HIERARCHY} or {LEVELS}"
            )
    if args.tree:
        check_kind(Path(args.tree))
    return args.strategy == TREE or (bool(args.tree) and not makes_trees)


def overrides(args: argparse.Namespace) -> list[str]:
    """What `--set` and the flags change in the config; a flag wins over `--set`."""
    strategy = "headings" if args.strategy == TREE else args.strategy  # whose parts a tree cuts its leaves by
    points = args.points or ("tagger" if args.tagger else None)  # of whichever strategy it is
    flags = {
        "strategy": strategy,
        "max_tokens": args.max_tokens,
        "min_tokens": args.min_tokens,
        "hierarchy.points": points,
        "levels.points": points,
        "hierarchy.level_cap": args.level_cap,
        "levels.sizes": None if args.sizes is None else list(args.sizes),
    }
    return [*args.set, *(f"{name}={value}" for name, value in flags.items() if value is not None)]


def check_outputs(documents: Sequence[Document], outputs: dict[str, str | None]) -> None:
    """Refuses files to write that would take the place of something, before anything is computed.

    Args:
        outputs: flag -> path, None where it was not given.
    """
    taken = {os.path.realpath(document.id): "a file that is read" for document in documents if document.id != STDIN}
    for flag, path in outputs.items():
        if path is None:
            continue
        real = os.path.realpath(path)
        if os.path.isdir(real) or real in taken:
            what = taken.get(real, "a folder")
            raise UsageError(f"{flag} {path}: is {what}; name another file")
        _check_writable(flag, path)
        taken[real] = f"what {flag} writes"


def _check_writable(flag: str, path: str) -> None:
    """Makes the folder of a file, and tries to write there: what it will hold may take hours. Leaves no empty file."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        is_new = not os.path.lexists(path)
        with open(path, "ab"):
            pass
        if is_new:
            os.unlink(path)
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be written ({error.strerror}); name another file") from error


def _load_reader(model: str, config: ChunkConfig, with_vectors: bool = False) -> Reader:
    """The tokenizer of an encoder; its weights, and JAX, only for what needs vectors.

    Args:
        model: as `--model`.
        config: strategy, and of `late` the window to read in.
        with_vectors: load the weights for the vectors of late chunks.
    """
    if config.strategy not in CHUNKERS.choices("vectors") and not with_vectors:
        return Reader(TextTokenizer.from_file(find_folder(model) / "tokenizer.json"))
    from qrag_jax.models.encoder.embedder import make_embedder
    from qrag_jax.models.encoder.weights import load_encoder

    loaded = load_encoder(model)
    try:
        embedder = make_embedder(loaded, window=config.late.window_tokens if with_vectors else None)
    except UsageError as error:
        raise UsageError(f"late.window_tokens: {error}") from error
    return Reader(loaded.tokenizer, embedder)


def _chunk_document(
    document: Document, config: ChunkConfig, reader: Reader, split: SplitSentences, with_vectors: bool = False
) -> tuple[list[Chunk], np.ndarray | None]:
    """Cuts one document, with a bar on a terminal while it is embedded; warnings are said on standard error.

    Args:
        reader: with an encoder where the strategy, or `with_vectors`, needs one.
        with_vectors: also return the vectors of the chunks, which strategy `late` has.

    Returns:
        (chunks by where they begin, float32 [chunks, dim] or None).
    """
    embedder, count = reader.embedder, reader.tokenizer.count
    vectors = None
    with warnings.catch_warnings(record=True, action="always", category=UserWarning) as caught:
        with Progress(transient=True) as progress:
            embed = None if embedder is None else lambda texts: embedder(texts, progress.stage("embed"))
            chunks = make_chunker(config, count, embed, split)(document)
            if with_vectors and embedder is not None:
                progress.note(f"vectors of {shown(document.id)}")
                spans, late = [chunk.spans for chunk in chunks], config.late
                vectors = late_vectors(
                    document.text, spans, embedder.tokens, count, late.window_tokens, late.overlap_tokens
                )
    for warning in caught:
        say(f"{document.id}: {warning.message}")
    return chunks, vectors


def format_json(document: Document, chunks: Sequence[Chunk]) -> str:
    """One JSON object a line; ASCII, so that any file name passes any terminal and comes back from a parser."""
    rows = [
        {
            "id": chunk.id,
            "file": document.id,
            "spans": [[start, end] for start, end in chunk.spans],
            "level": chunk.level,
            "num_tokens": chunk.num_tokens,
        }
        | ({} if (page := page_of(document, chunk.spans[0][0])) is None else {"page": page})
        for chunk in chunks
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def format_text(document: Document, chunks: Sequence[Chunk], *, indent: bool = False) -> str:
    """Aligned lines: `file:start-end` (`file:0-9,20-31` of two spans), level, tokens, and how the chunk begins.

    Args:
        chunks: in the order of the lines.
        indent: by two spaces a level, so that it shows what lies in what.
    """
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
    plain = " ".join(text[start : min(end, start + 4 * _MOST_SHOWN)].split())
    whole = len(plain) <= _MOST_SHOWN and end <= start + 4 * _MOST_SHOWN and len(chunk.spans) == 1
    return shown(plain if whole else plain[: _MOST_SHOWN - 3] + "...")


def _say_what_was_cut(reader: Reader, model: str) -> None:
    if reader.embedder is not None and reader.embedder.counts.num_texts_cut:
        counts, window = reader.embedder.counts, reader.embedder.window
        say(
            f"{counts.num_texts_cut:,} of {counts.num_texts:,} texts are longer than the {window} tokens that {model} "
            "reads; only their beginning was compared"
        )
