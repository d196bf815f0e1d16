"""`qrag train`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags

SUMMARY = "train a retriever from a config"
DESCRIPTION = """\
Train a retriever from a config. Every field has a default; a YAML file and key=value overrides change some of them,
later ones winning. A typo is refused with the name that was probably meant.

What comes out, in --out: a checkpoint folder that stands alone (parameters, optimiser, config, tokenizer, versions;
it may be moved), metrics.jsonl, one line a logged step, and times.jsonl, the seconds of these steps. A folder that
holds a checkpoint already is refused, but for --resume.

A run saves every save_every updates (default: a tenth of the run), and at SIGTERM or Ctrl-C before it ends, with exit
code 143 or 130. --resume goes on after its newest undamaged checkpoint, and every later update is what it would have
been, bit for bit on the same kind and number of devices. Give a cluster's job the same line each time: where there is
no checkpoint yet, --resume starts with the first update.

mesh.data=8 splits a batch over 8 devices, mesh.fsdp=8 also parameters and optimiser. On several machines start the same
line once a process, with --distributed where SLURM, Open MPI or a TPU pod says who is who, else with --coordinator,
--num_processes and --process_id. All of them see the same files; the first one writes.
"""
EXAMPLES = """\
examples:
  qrag train --dry_run                                          print every field and its default
  qrag train --config_path run.yaml --out runs/qa2 learner.gamma=0.9 --seed=1
  qrag train --out runs/qa1 data.task=babi 'data.paths=[qa1_train.txt]' data.haystack=novels/
  qrag train --out runs/qa2 --resume                            with the config that the run was started with
  qrag train --config_path run.yaml --out runs/many --seeds 0,1,2,3
  srun qrag train --config_path run.yaml --out runs/big --resume --distributed mesh.data=16
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag train`."""
    parser.add_argument(
        "--config_path", metavar="X.yaml", help="YAML file with the fields that differ from the defaults"
    )
    flags.add_out(parser, "run folder to write", "%(default)s", value="runs/train")
    parser.add_argument(
        "--seeds",
        type=flags.seeds,
        metavar="N,N,...",
        help="train latent runs of these seeds together, on the same data, into RUN/seed_N (default: the seed field)",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if there is one")
    parser.add_argument("--distributed", action="store_true", help="one of several processes, as the cluster says")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="one of several processes; where the first one is")
    parser.add_argument(
        "--num_processes", type=flags.positive, metavar="N", help="with --coordinator: processes in all"
    )
    parser.add_argument("--process_id", type=flags.natural, metavar="I", help="with --coordinator: number of this one")
    flags.add_reading(parser)
    flags.add_compile_cache(parser)
    parser.add_argument("--dry_run", action="store_true", help="print the whole resolved config as YAML and stop")
    flags.add_json(parser, "the final metrics as JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as learner.gamma=0.9 or --seed=1")
