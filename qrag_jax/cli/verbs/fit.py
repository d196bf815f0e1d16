"""`qrag fit KIND`: hands over to one module a kind of model."""

import argparse
import importlib


def run(args: argparse.Namespace) -> int:
    """Runs `qrag fit`; see `qrag fit --help`."""
    return importlib.import_module(f"qrag_jax.cli.verbs.fit_{args.what}").run(args)
