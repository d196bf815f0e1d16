"""Config of a decoder that learns; docs/how_to/train_decoders.md has a line for each field."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from qrag_jax.data.plan_tasks import PlanTaskConfig
from qrag_jax.names import DecoderMethod
from qrag_jax.sharding import DecoderMesh
from qrag_jax.train.decoder.losses import Mean
from qrag_jax.types import UsageError, check_fields

Phase = Literal["start", "sft", "grpo", "stitch"]
Projection = Literal["query", "key", "value", "output", "gate", "up", "down"]


@dataclass(frozen=True)
class DecoderData:
    """The records that a decoder learns from, and those that it is scored on.

    Attributes:
        paths, eval_paths: of task jsonl: files of planning records, or of chats whose last message is the answer.
        seed: of the controlled task; None: that of the run.
        levels: names of the levels that records of task jsonl plan with, the coarsest first: RUN becomes a planner.
    """

    task: Literal["controlled", "jsonl"] = "controlled"
    paths: tuple[str, ...] = ()
    eval_paths: tuple[str, ...] = ()
    controlled: PlanTaskConfig = PlanTaskConfig()
    seed: int | None = None
    levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, within={"seed": f"[0, {2**31})"})
        if self.task == "jsonl" and not self.paths:
            raise UsageError("task jsonl needs at least one file", field="paths")
        if len({*self.levels}) < len(self.levels):
            raise UsageError("give each level once", field="levels", value=self.levels)


@dataclass(frozen=True)
class ScratchShape:
    """Shape of a new decoder; the task has its vocabulary."""

    hidden_size: int = 64
    intermediate_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    max_positions: int = 128

    def __post_init__(self) -> None:
        check_fields(self, positive=[one.name for one in fields(self)])
        if self.hidden_size % (2 * self.num_heads):
            reason = "must be a multiple of 2 x num_heads: rotary positions turn pairs of a head"
            raise UsageError(reason, field="hidden_size", value=self.hidden_size)


@dataclass(frozen=True)
class DecoderModel:
    """The decoder that learns: `scratch`, or a source that `load_decoder` reads; parameters are float32."""

    source: str = "scratch"
    scratch: ScratchShape = ScratchShape()
    dtype: Literal["float32", "bfloat16"] = "float32"
    remat: bool = True


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank changes of some projections, trained in place of all parameters; rank 0 trains all."""

    rank: int = 0
    projections: tuple[Projection, ...] = ("query", "key", "value", "output")

    def __post_init__(self) -> None:
        check_fields(self, at_least={"rank": 0})
        if self.rank and not self.projections:
            raise UsageError("give at least one, or rank=0", field="projections")


@dataclass(frozen=True)
class StartConfig:
    """Imitation of the controlled task's start examples before all else; 0 examples leave it out."""

    examples: int = 0
    epochs: int = 8
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        check_fields(self, positive=("epochs",), at_least={"examples": 0}, within={"learning_rate": "(0, inf)"})


@dataclass(frozen=True)
class ImitationConfig:
    """Imitation of answers: SFT, and the imitation phases of STITCH.

    Attributes:
        width: tokens of a row, which several examples may share; None is the longest example's, in a run with rollouts
            the longest prompt's with an answer of `rollout.max_tokens`.
        learning_rate: of Adam, after the warm-up.
        warmup: share of an imitation phase in which the learning rate rises from 0.
        final_rate: share of the learning rate at the end of a phase, to which it falls as a cosine; 1 is constant.
        traces: most traces that are asked for in the run; None is no limit.
        only_unsolved: SFT asks for traces only where none of G answers of the policy is correct.
        buffer: STITCH imitates when this many examples wait (T); never, unless `from_buffer`.
        rehearsal: examples that are rehearsed for each one in the buffer.
    """

    epochs: int = 1
    batch_rows: int = 16
    width: int | None = None
    learning_rate: float = 7e-4
    warmup: float = 0.0
    final_rate: float = 1.0
    traces: int | None = None
    only_unsolved: bool = False
    buffer: int = 64
    from_buffer: bool = True
    rehearse: Literal["none", "solved", "traces"] = "none"
    rehearsal: float = 1.0

    def __post_init__(self) -> None:
        within = {"rehearsal": "[0, inf)", "learning_rate": "(0, inf)", "warmup": "[0, 1)", "final_rate": "[0, 1]"}
        check_fields(self, positive=("epochs", "batch_rows", "width", "buffer", "traces"), within=within)


@dataclass(frozen=True)
class RolloutConfig:
    """Rollouts and the updates on them: GRPO, and the steps of STITCH.

    Attributes:
        rollouts: most answers that are drawn in the run, hinted ones included.
        prompts, group: of a step; answers to a prompt (G).
        max_tokens, hint_tokens: limits of an answer and of a hint; None: the hint's is that of an answer.
        temperature: of the draws; the ratio of the loss is taken at temperature 1.
        mini_batches: updates of a step, each on a part of its groups.
        parts: that the groups of an update are divided into, one in memory at a time.
        ddof, epsilon, scales: `losses.group_advantages`.
        overlong: "mask": answers that were cut count in their group and train no token.
        overlong_margin: `losses.soft_overlong`.
        rewards: weights by name, of `names.DECODER_REWARDS` or handed in; null is the default.
        max_trace: tokens of a trace beyond which `format` and `length` count it as too long.
        solved_by: the reward that is 1 for correct answers; it needs no weight.
    """

    rollouts: int = 16_128
    prompts: int = 24
    group: int = 8
    max_tokens: int = 128
    hint_tokens: int | None = None
    temperature: float = 1.0
    mini_batches: int = 1
    parts: int = 1
    learning_rate: float = 7e-4
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.04
    reference: Literal["start", "imitation"] = "start"
    mean: Mean = "sequence"
    ddof: int = 1
    epsilon: float = 1e-6
    scales: bool = True
    overlong: Literal["keep", "mask"] = "keep"
    overlong_margin: int = 0
    hints: bool = True
    imitate_hinted: bool = False
    rewards: Mapping[str, float | None] = field(
        default_factory=lambda: {"label_alignment": None, "length": None, "format": None}
    )
    max_trace: int = 128
    solved_by: str = "exact_plan"

    def __post_init__(self) -> None:
        check_fields(
            self,
            positive=("rollouts", "prompts", "max_tokens", "hint_tokens", "mini_batches", "parts", "max_trace"),
            within={"temperature": "(0, inf)", "learning_rate": "(0, inf)", "clip_low": "(0, 1)"},
            at_least={"group": 2, "kl_coef": 0, "clip_high": 0, "overlong_margin": 0, "ddof": 0, "epsilon": 0},
        )
        if self.rollouts < self.prompts * self.group:
            reason = f"a step draws prompts x group = {self.prompts * self.group:,} answers"
            raise UsageError(reason, field="rollouts", value=self.rollouts)
        if self.prompts % self.mini_batches:
            raise UsageError(f"{self.prompts} prompts cannot be divided evenly", field="mini_batches")
        if self.prompts // self.mini_batches % self.parts:
            raise UsageError("the prompts of an update cannot be divided evenly", field="parts", value=self.parts)


@dataclass(frozen=True)
class DecoderRun:
    """A run of `qrag train sft|grpo|stitch`.

    Attributes:
        method: the last phase; `sft_first` puts an SFT phase before it.
        max_norm: gradients are scaled down to this norm.
        score_every: updates between two scores on the evaluation records; None scores at the end only.
        keep: checkpoints that stay.
    """

    method: DecoderMethod = "stitch"
    sft_first: bool = False
    seed: int = 0
    model: DecoderModel = DecoderModel()
    data: DecoderData = DecoderData()
    start: StartConfig = StartConfig()
    imitation: ImitationConfig = ImitationConfig()
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    lora: LoraConfig = LoraConfig()
    max_norm: float = 1.0
    mesh: DecoderMesh = DecoderMesh()
    log_every: int = 10
    save_every: int = 100
    score_every: int | None = None
    keep: int = 3
    tensorboard: bool = False

    def __post_init__(self) -> None:
        positive = ("log_every", "save_every", "score_every", "keep")
        check_fields(self, positive=positive, within={"max_norm": "(0, inf)", "seed": f"[0, {2**31})"})
        if self.model.source == "scratch" and self.data.task != "controlled":
            raise UsageError("a new decoder knows only the words of the controlled task: give model.source")
        if self.start.examples and self.data.task != "controlled":
            raise UsageError("only the controlled task has start examples", field="start.examples")

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The parts of the run, in order."""
        start: tuple[Phase, ...] = ("start",) if self.start.examples else ()
        first: tuple[Phase, ...] = ("sft",) if self.sft_first and self.method != "sft" else ()
        return (*start, *first, self.method)
