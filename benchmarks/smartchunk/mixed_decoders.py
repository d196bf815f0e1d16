"""Small decoders that learn to plan for the mixed questions: imitation, imitation and GRPO, STITCH.

    python -m benchmarks.smartchunk.mixed_levels DATA --cache FOLDER --records RECORDS.jsonl --budget 1024
    python -m benchmarks.smartchunk.mixed_decoders RECORDS.jsonl --out FOLDER
    python -m benchmarks.smartchunk.mixed_levels DATA --cache FOLDER --planner "SFT=FOLDER/sft" "STITCH=FOLDER/stitch"

The decoder is new: 2 layers, and a byte-level vocabulary of 2,000 tokens from the prompts of train. It learns from the
records of train and is scored on those of dev; nothing here reads test. An answer is a trace by rule and the range of
levels; its label is the level that is best for the kind of question. GRPO and STITCH are paid by evidence recall of the
planned range at the budget of the records. All of them begin with the imitation of the same few examples, which teach
the form of an answer: each kind's trace with ranges that are drawn at random.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.common import arguments
from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.chunking.tree.plan_texts import plan_json, trace_of
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.network import init_params
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.decoder.weights import LoadedDecoder, save_decoder
from qrag_jax.train.decoder.config import DecoderData, DecoderModel, DecoderRun, ImitationConfig, RolloutConfig
from qrag_jax.train.decoder.run import train_decoder
from qrag_jax.types import Watch

_VOCABULARY, _WINDOW = 2_000, 640
_MARKS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_EXAMPLES = 200  # of the form of an answer
METHODS = ("sft", "grpo", "sft+grpo", "stitch")


def new_decoder(folder: Path, texts: Sequence[str], seed: int) -> Path:
    """A model folder of a new decoder, its vocabulary learned from the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=list(_MARKS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    own = DecoderTokenizer(tokenizer, eos_token=_MARKS[-1], chat_template=_CHAT, source="mixed questions")
    shape = DecoderConfig(
        "qwen3", own.vocab_size, 64, 128, 2, 4, 4, 16, _WINDOW, tie_embeddings=True, qk_norm=True
    )  # fmt: skip
    return save_decoder(folder, LoadedDecoder(shape, init_params(shape, jax.random.key(seed)), own, ""))


def forms(records: Sequence[dict], seed: int) -> list[dict]:
    """Chats of train whose answers have the right form and a range that was drawn."""
    rng = np.random.default_rng(seed)
    found = []
    for number in rng.permutation(len(records))[:_EXAMPLES].tolist():
        one = records[number]
        ends = np.sort(rng.integers(len(one["names"]), size=2)).tolist()
        answer = f"{trace_of(one['answer']).rstrip()} {plan_json(LevelRange(*ends), one['names'])}"
        found.append({"messages": [*one["messages"], {"role": "assistant", "content": answer}]})
    return found


def run_config(method: str, source: Path, folder: Path, names: Sequence[str], seed: int, smoke: bool) -> DecoderRun:
    """The run of a method: imitation of every trace, then 84 steps of 24 prompts and 8 answers."""
    return DecoderRun(
        method="grpo" if "grpo" in method else method,  # type: ignore[arg-type]
        sft_first=method == "sft+grpo",
        seed=seed,
        model=DecoderModel(str(source)),
        data=DecoderData("jsonl", (str(folder / "train.jsonl"),), (str(folder / "dev.jsonl"),), levels=tuple(names)),
        imitation=ImitationConfig(1 if smoke else 8, traces=20 if smoke else None, buffer=8, rehearse="traces"),
        rollout=RolloutConfig(
            rollouts=384 if smoke else 16_128,
            max_tokens=80,
            imitate_hinted=True,
            rewards={"evidence_recall": 1.0, "format": 0.1},
        ),
    )


def main() -> None:
    parser = arguments(__doc__, smoke="few updates of every method")
    parser.add_argument("records", type=Path, metavar="RECORDS.jsonl")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    records = [json.loads(line) for line in args.records.read_text().splitlines()]
    parts = {part: [one for one in records if one["part"] == part] for part in ("train", "dev")}
    args.out.mkdir(parents=True, exist_ok=True)
    for name, own in {**parts, "forms": forms(parts["train"], args.seed)}.items():
        (args.out / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in own))
    texts = [f"{one['messages'][0]['content']} {one['answer']}" for one in parts["train"]]
    blank = new_decoder(args.out / "blank", texts, args.seed)
    start = DecoderRun(
        method="sft",
        seed=args.seed,
        model=DecoderModel(str(blank)),
        data=DecoderData("jsonl", (str(args.out / "forms.jsonl"),)),
        imitation=ImitationConfig(2 if args.smoke else 40, learning_rate=3e-3),
    )
    if not (args.out / "start" / "results.json").exists():
        train_decoder(start, args.out / "start", Watch())
    for method in args.methods:
        run = args.out / method.replace("+", "_")
        if not (run / "results.json").exists():
            names = parts["train"][0]["names"]
            config = run_config(method, args.out / "start", args.out, names, args.seed, args.smoke)
            _show(method, train_decoder(config, run, Watch()))


def _show(method: str, row: dict[str, Any]) -> None:
    print(method, {name: row[name] for name in ("accuracy", "accuracy_macro", "rollouts", "traces", "seconds")})


if __name__ == "__main__":
    main()
