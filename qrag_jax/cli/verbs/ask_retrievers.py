"""What the flags of `qrag ask` name: a method that searches in one step, or a run that picks step by step."""

import argparse

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.cli.parsers.ask import RETRIEVERS
from qrag_jax.cli.progress import WithBar
from qrag_jax.retrieval.index.retriever import load_retriever
from qrag_jax.retrieval.methods import DEFAULT_CHUNKING, Method, multi_step_method, single_step_method
from qrag_jax.types import UsageError


def make_method(args: argparse.Namespace) -> Method:
    """The method that the flags of `qrag ask` name, loaded.

    Raises:
        UsageError: there is no such retriever or encoder, or flags that do not belong to it.
        InputError: it is damaged, or cannot read the question.
    """
    if args.retriever in RETRIEVERS:
        strategy = args.strategy or DEFAULT_CHUNKING.strategy
        chunking = ChunkConfig(strategy=strategy, max_tokens=args.max_tokens or DEFAULT_CHUNKING.max_tokens)
        return single_step_method(args.retriever, args.model or "minilm", chunking, WithBar)
    method = _of_run(args)
    method.check(args.question)
    return method


def _of_run(args: argparse.Namespace) -> Method:
    for name in ("strategy", "max_tokens", "model"):
        if getattr(args, name) is not None:
            raise UsageError(
                f"--{name}: belongs to {', '.join(RETRIEVERS)}; a run reads sentences, with the encoder it was trained "
                "with"
            )
    try:
        retriever = load_retriever(args.retriever)
    except UsageError as error:
        raise UsageError(f"--retriever {args.retriever}: one of {', '.join(RETRIEVERS)}, or a run: {error}") from error
    if retriever.encoder is None:
        raise UsageError(
            f"--retriever {args.retriever}: this run was trained on given vectors and has no text encoder to read "
            "files with: name one that was trained on texts"
        )
    return multi_step_method(retriever, args.num_steps, WithBar, args.retriever)
