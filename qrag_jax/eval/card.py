"""The model card of a shared run: description, training data, scores, limits."""

from collections.abc import Mapping, Sequence
from typing import Any

from qrag_jax.checkpoint import Checkpoint
from qrag_jax.config import flatten
from qrag_jax.eval.retrieval.records import Row
from qrag_jax.eval.retrieval.report import format_table
from qrag_jax.files.strict_yaml import dump_yaml
from qrag_jax.hub import Place
from qrag_jax.types import InputError, UsageError

_TAGS = ("qrag_jax", "jax", "retrieval", "multi-step-retrieval", "reinforcement-learning")
_PYTHON = """\
from qrag_jax.qrag.retriever import load_retriever
from qrag_jax.qrag.multi_step_search import make_action_bank, search_bank

retriever = load_retriever("{folder}")
for step in search_bank(make_action_bank(retriever, chunks), question).steps:
    print(step.q_value, chunks[step.chunk])
"""


def check_rows(rows: Sequence[Row], config: Mapping[str, Any], source: str) -> None:
    """Raises an error for rows that name another run."""
    flat = flatten(config)
    here = (flat.get("model.mode"), flat.get("env.positions"))
    trained = {(row.setting.mode, row.setting.positions) for row in rows if row.setting.method == "trained"}
    if not trained:
        raise UsageError(
            f"{source}: no row with method 'trained', so it has no scores of this run; "
            "give what `qrag eval --json` wrote"
        )
    if others := trained - {here}:
        mode, positions = sorted(others)[0]
        raise UsageError(
            f"{source}: scores of another run: mode {mode}, positions {positions} there; {here[0]}, {here[1]} here"
        )


def local_paths(config: Mapping[str, Any]) -> list[str]:
    """`field=path` of every path in a config that is absolute or leads upwards: they say where someone keeps files."""
    return [
        f"{name}={part}"
        for name, value in flatten(config).items()
        for part in (value if isinstance(value, list | tuple) else [value])
        if isinstance(part, str) and part.rpartition(":")[2].startswith(("/", "~", ".."))  # hotpot:/data/dev.json
    ]


def make_card(
    saved: Checkpoint, place: Place, rows: Sequence[Row] = (), licence: str | None = None, inference: bool = False
) -> str:
    """The model card: Markdown under front matter that the hub reads.

    Args:
        saved: config, metadata and versions are used.
        rows: of `qrag eval`; none leaves their table out.
        licence: identifier of the hub, such as `apache-2.0`.
        inference: whether what only training needs is left out.
    """
    header: dict[str, Any] = {"library_name": "qrag_jax", "tags": list(_TAGS)}
    if licence is not None:
        header["license"] = licence
    sections = [
        f"---\n{dump_yaml(header)}---",
        f"# {_title(saved, place)}",
        _purpose(saved),
        *_usage(saved, place),
        "## Training data",
        _bullets(_data_facts(saved)),
        "## Scores",
        *_scores(saved, rows),
        "## Config",
        f"Every field; `qrag train --config_path config.yaml` reads it.\n\n```yaml\n{dump_yaml(saved.config)}```",
        "## Limits",
        _bullets(_limits(saved, inference)),
    ]
    return "\n\n".join(section.rstrip() for section in sections) + "\n"


def _title(saved: Checkpoint, place: Place) -> str:
    name = place.repository.partition("/")[2] if place.repository else saved.metadata.get("task", "a run")
    return f"{name}: a multi-step retriever"


def _purpose(saved: Checkpoint) -> str:
    flat = flatten(saved.config)
    towers = {
        "latent": "Its towers are small networks over the vectors of a frozen encoder",
        "text": "Its towers are fine-tuned text encoders",
    }
    how = towers.get(str(flat.get("model.mode")), "Its towers are in the config")
    if flat.get("model.encoder.source") == "vectors":
        how = "Its towers are small networks over given vectors of questions and chunks"
    trained = {
        "soft_q": "trained by reinforcement learning (Q-RAG)",
        "sft": "trained by supervision on the gold chunks",
    }
    means = trained.get(str(flat.get("learner.objective")), "trained")
    return (
        "Reads a question, picks the chunk of a text with the highest Q value, reads that too, and picks the next one: "
        f"{flat.get('env.num_steps')} picks, {means} with qrag_jax {saved.versions.get('qrag_jax', '')}. {how}; "
        f"positions: {flat.get('env.positions')}. This is step {saved.step:,} of the training."
    )


def _usage(saved: Checkpoint, place: Place) -> list[str]:
    out = f"runs/{place.repository.partition('/')[2]}" if place.repository else "runs/pulled"
    where = str(place) if place.repository else "./THIS_FOLDER"
    vectors = flatten(saved.config).get("model.encoder.source") == "vectors"
    ask = f"qrag eval {out} --vectors INDEX/" if vectors else f'qrag find {out} notes/ "Where is the key?"'
    return [
        "## Use",
        f"```sh\nqrag pull {where} {out}\n{ask}\n```",
        f"```python\n{_PYTHON.format(folder=out)}```",
    ]


def _data_facts(saved: Checkpoint) -> list[str]:
    about = saved.metadata
    facts = [f"task: {about['task']}"] if "task" in about else []
    if "num_questions" in about:
        facts.append(f"questions: {about['num_questions']:,}; left out: {about.get('num_left_out', 0):,}")
    if "num_chunks" in about:
        facts.append(f"chunks of the longest context: {about['num_chunks']:,}")
    return facts or ["the checkpoint does not say; see `data` in the config"]


def _scores(saved: Checkpoint, rows: Sequence[Row]) -> list[str]:
    parts = []
    if "dev" in saved.metadata:
        parts += [
            "Questions held out of the training data. They chose the parameters and fitted the threshold, so these "
            "numbers are not a test.",
            _bullets(_dev_facts(saved.metadata["dev"])),
        ]
    if rows:
        parts += ["Scored with `qrag eval`:", format_table(rows, markdown=True)]
    return parts or ["No scores were given. `qrag eval` scores the run on questions with known chunks."]


def _dev_facts(dev: Any) -> list[str]:
    try:
        return _written_facts(dev)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"metadata of the checkpoint: dev was changed ({error!r}): copy the run again") from error


def _written_facts(dev: Mapping[str, Any]) -> list[str]:
    facts = [f"update chosen: {dev['update']:,}, mean return {dev['return']:.3f}"]
    if "threshold" in dev:
        asked = f"{dev['num_questions']:,} questions, contexts of up to {dev['num_chunks']:,} chunks"
        facts.append(f"fact F1 {dev['fact_f1']:.3f} stopping below Q = {dev['threshold']:.4g} ({asked})")
    if "beam_width" in dev:
        facts.append(f"best beam width: {dev['beam_width']}")
    return facts


def _limits(saved: Checkpoint, inference: bool) -> list[str]:
    flat = flatten(saved.config)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(saved.versions.items()))
    limits = ["Scores hold for questions, texts and lengths like those above; nothing is known about others."]
    if flat.get("model.encoder.source") != "vectors":
        limits.append(
            f"The first {flat.get('model.encoder.window')} tokens of a chunk and "
            f"{flat.get('model.encoder.question_window')} of a question are read."
        )
    if inference:
        limits.append(
            "Optimiser state and target parameters were left out: this copy can search, but not be trained further."
        )
    return [*limits, f"Saved with {versions}."]


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
