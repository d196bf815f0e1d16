"""Rows and records for tests: changed by the flat names of their files, and scored with few words."""

import dataclasses

from qrag_jax.eval.retrieval import harness
from qrag_jax.eval.setting import Setting

LATENT = Setting(method="trained", mode="latent", positions="relative", seed=0, num_chunks=20)
_NAMES = {field.name for field in dataclasses.fields(Setting)}


def replace(record, **changes):
    """`dataclasses.replace`; what is the setting's is changed there."""
    own = {name: changes.pop(name) for name in [*changes] if name in _NAMES and hasattr(record, "setting")}
    if own:
        changes["setting"] = dataclasses.replace(record.setting, **own)
    return dataclasses.replace(record, **changes)


def evaluate(task, pickers, num_steps, labels, num_questions=None, seed=0, report=None, **options):
    """`harness.evaluate` with the fields of `Scoring` as arguments."""
    return harness.evaluate(task, pickers, labels, harness.Scoring(num_steps, num_questions, seed, **options), report)
