"""`qrag train NAME` of any learner of `qrag_jax.names.LEARNERS`: a config, changes of it, and a run folder."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.cli import flags
from qrag_jax.cli.parser import Verb
from qrag_jax.names import LEARNERS

if TYPE_CHECKING:
    from qrag_jax.train.kind import LearnerKind


def learner_verb(name: str) -> Verb:
    """The kind of `qrag train` that trains a learner by its config alone."""
    about, line = LEARNERS[name].about, f"qrag train {name}"
    return Verb(
        description=f"""\
Train a learner of the kind {name}: {about}.

Every field of its config has a default or is refused where it is missing; a YAML file and key=value overrides change
some of them, later ones winning. --dry_run prints all of them.

What comes out, in --out: a checkpoint folder that stands alone; and what to expect of it.
""",
        examples=f"examples:\n  {line} --dry_run\n  {line} --config_path mine.yaml --out runs/{name} seed=1\n",
        add_flags=_add_flags,
        run=partial(_run, name),
        summary=about,
    )


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config_path", metavar="X.yaml", help="YAML file with fields of the config")
    flags.add_out(parser, "run folder to write", "%(default)s", value="runs/train")
    flags.add_reading(parser)
    flags.add_compile_cache(parser)
    parser.add_argument("--dry_run", action="store_true", help="print the whole config as YAML and stop")
    flags.add_json(parser, "what came out as JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="a field of the config, as seed=1")


def _run(name: str, args: argparse.Namespace) -> int:
    from qrag_jax.cli.progress import Progress
    from qrag_jax.cli.terminal import write_json
    from qrag_jax.config import dump_config, load_config
    from qrag_jax.train.run_folder import check_out

    kind: LearnerKind = LEARNERS.load(name)
    config = load_config(kind.config, args.config_path, args.overrides)
    if args.dry_run:
        sys.stdout.write(dump_config(config))
        return 0
    out = Path(args.out)
    check_out(out, resumes=False)
    with Progress() as progress:
        row = {"run": args.out, **kind.train(config, out, progress.report)}
    if args.json:
        write_json(row)
    else:
        print(kind.format(row))
    return 0
