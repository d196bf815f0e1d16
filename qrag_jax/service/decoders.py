"""Trains decoders by imitation (SFT), by reinforcement (GRPO) and by both in turns (STITCH)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from qrag_jax.config import is_given, is_override, load_config
from qrag_jax.eval.tables import share
from qrag_jax.names import DecoderMethod
from qrag_jax.train.decoder.config import DecoderRun
from qrag_jax.train.decoder.run import train_decoder
from qrag_jax.train.kind import LearnerKind
from qrag_jax.train.run_folder import check_out
from qrag_jax.types import NOBODY, UsageError, Watch


@dataclass(frozen=True)
class DecoderRequest:
    """A decoder to train.

    Attributes:
        config: YAML file with the fields of `DecoderRun` that differ from their defaults.
        overrides: changes of the config, `field=value`.
        resume: continue the run, if there is one.
    """

    config: str
    overrides: tuple[str, ...] = ()
    resume: bool = False


def train_decoder_run(
    request: DecoderRequest, out: Path, watch: Watch = NOBODY, *, method: DecoderMethod = "stitch"
) -> dict[str, Any]:
    """Trains a decoder.

    Args:
        out: run folder to write.
        method: `sft`, `grpo` or `stitch`.

    Returns:
        The row of the result.
    """
    if not request.resume:
        check_out(out)
    return train_decoder(decoder_config(request, method), out, watch, resume=request.resume)


def decoder_config(request: DecoderRequest, method: DecoderMethod) -> DecoderRun:
    """The complete config of a request.

    Raises:
        UsageError: a field is unknown or wrong, or the config says another method.
    """
    if wrong := [word for word in request.overrides if not is_override(word)]:
        raise UsageError(f"{wrong[0]}: give one config; change a field with field=value, such as seed=1")
    config = load_config(DecoderRun, request.config, request.overrides)
    if is_given("method", request.config, request.overrides) and config.method != method:
        raise UsageError(f"the config says {config.method}: use qrag train {config.method}", field="method")
    return replace(config, method=method)


def _format(row: Mapping[str, Any]) -> str:
    lines = [f"trained: {row['run']} by {row['method']}, {row['updates']:,} updates, {row['seconds']:,.0f} s"]
    if row["accuracy"] is not None:
        interval = f"{share(row['accuracy'])} [{share(row['low'])}, {share(row['high'])}]"
        lines.append(
            f"held out: {interval} of the answers correct, {share(row['accuracy_macro'])} as a mean over kinds"
        )
    lines.append(
        f"cost: {row['rollouts']:,} rollouts, {row['traces']:,} traces, {row['imitation_steps']:,} imitation steps"
    )
    if row["untaught"] or row["unrewarded"]:
        lines.append(
            f"left out: {row['untaught']:,} prompts without a trace, {row['unrewarded']:,} answers without a reward"
        )
    return "\n".join(lines)


SFT, GRPO, STITCH = (
    LearnerKind(DecoderRequest, partial(train_decoder_run, method=method), _format)
    for method in ("sft", "grpo", "stitch")
)
