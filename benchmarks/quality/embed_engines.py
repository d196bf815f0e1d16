"""The engines that embed.py compares. This file run as a script is one engine in its process, told what to do on stdin.

python -m benchmarks.quality.embed_engines serve "torch bf16" FOLDER TAG    # embed.py starts it; FOLDER holds the sets
python -m benchmarks.quality.embed_engines export FOLDER                    # writes exported.onnx and fused.onnx
python -m benchmarks.quality.embed_engines draw FOLDER modernbert           # writes a model with drawn weights
python -m benchmarks.quality.embed_engines peak "torch bf16"                # prints GFLOP/s of a large product

FOLDER/model is the encoder.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import CORES, serve

LENGTHS = (16, 64, 128)
NUM_LAYERS = 6  # of drawn models; a multiple of three, after which layers of ModernBERT repeat
SETS = (*map(str, LENGTHS), "mixed")
TOKENS_PER_BATCH = (512, 1024, 2048, 4096)  # that rivals choose their batch size from


class Rows(NamedTuple):
    """One set of sentences.

    Attributes:
        texts: n of them.
        tokens: int32 [n, L], `[CLS] text [SEP]`, padded on the right.
        lengths: int32 [n].
    """

    texts: list[str]
    tokens: np.ndarray
    lengths: np.ndarray


class Job(NamedTuple):
    """Something to time: `run(setting, rows)` gives float32 vectors; the fastest of `settings` is kept."""

    run: Callable[[Any, Rows], np.ndarray]
    settings: Sequence[Any] = (None,)


def load_sets(folder: Path) -> dict[str, Rows]:
    sets = {}
    for name in SETS:
        arrays = np.load(folder / f"{name}.npz", allow_pickle=False)
        sets[name] = Rows(json.loads((folder / f"{name}.json").read_text()), arrays["tokens"], arrays["lengths"])
    return sets


def batches(rows: Rows, tokens_per_batch: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(row indices, int64 token ids, int64 mask) of batches of rows of similar length, longest first."""
    size = max(1, tokens_per_batch // int(rows.lengths.mean()))
    order = np.argsort(-rows.lengths, kind="stable")
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        longest = rows.lengths[chosen].max()
        mask = np.arange(longest) < rows.lengths[chosen, None]
        yield chosen, rows.tokens[chosen, :longest].astype(np.int64), mask.astype(np.int64)


def make_ours(dtype: str) -> Callable[[Path], dict[str, Job]]:
    return lambda folder: _make_ours(folder, dtype)


def _make_ours(folder: Path, dtype: Any) -> dict[str, Job]:
    from qrag_jax.models.encoder.embedder import make_embedder
    from qrag_jax.models.encoder.tokenizer import TextTokenizer, TokenTable
    from qrag_jax.models.encoder.weights import load_encoder

    class TokensAtHand(TextTokenizer):
        """Hands out token ids that are there already, so that a call of the embedder is the encoder alone."""

        rows: Rows

        def encode(self, texts, window, **options) -> TokenTable:
            return TokenTable(self.rows.tokens, self.rows.lengths, 0)

    loaded = load_encoder(str(folder / "model"))
    at_hand: Any = TokensAtHand.from_file(folder / "model" / "tokenizer.json")
    of_text, of_tokens = (make_embedder(one, dtype=dtype) for one in (loaded, replace(loaded, tokenizer=at_hand)))

    def run_tokens(setting: None, rows: Rows) -> np.ndarray:
        at_hand.rows = rows
        return of_tokens(rows.texts)

    return {"encoder": Job(run_tokens), "text": Job(lambda setting, rows: of_text(rows.texts))}


def make_torch(bf16: bool) -> Callable[[Path], dict[str, Job]]:
    def make(folder: Path) -> dict[str, Job]:
        import torch

        model = load_torch_model(folder)
        if bf16:
            model.bfloat16()
        torch.set_num_threads(CORES)

        def run_tokens(tokens_per_batch: int, rows: Rows) -> np.ndarray:
            vectors = np.zeros((len(rows.texts), int(model.get_sentence_embedding_dimension() or 0)), np.float32)
            with torch.inference_mode():
                for chosen, tokens, mask in batches(rows, tokens_per_batch):
                    read = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask)}
                    vectors[chosen] = model(read)["sentence_embedding"].float().numpy()
            return vectors

        def run_text(tokens_per_batch: int, rows: Rows) -> np.ndarray:
            size = max(1, tokens_per_batch // int(rows.lengths.mean()))
            vectors = model.encode(rows.texts, batch_size=size, convert_to_numpy=False, show_progress_bar=False)
            return torch.stack(vectors).float().numpy()

        return {"encoder": Job(run_tokens, TOKENS_PER_BATCH), "text": Job(run_text, TOKENS_PER_BATCH)}

    return make


def load_torch_model(folder: Path, **model_options: str) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder / "model"), device="cpu", model_kwargs=model_options).eval()


def make_onnx(folder: Path) -> dict[str, Job]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = CORES, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    sessions = {
        graph: onnxruntime.InferenceSession(folder / f"{graph}.onnx", options, providers=["CPUExecutionProvider"])
        for graph in ("exported", "fused")
    }

    def run_tokens(setting: tuple[str, int], rows: Rows) -> np.ndarray:
        graph, tokens_per_batch = setting
        vectors = np.zeros((len(rows.texts), 384), np.float32)
        for chosen, tokens, mask in batches(rows, tokens_per_batch):
            (found,) = sessions[graph].run(None, {"input_ids": tokens, "attention_mask": mask})
            vectors[chosen] = np.asarray(found)
        return vectors

    return {"encoder": Job(run_tokens, [(graph, size) for size in TOKENS_PER_BATCH for graph in sessions])}


def export_onnx(folder: Path) -> None:
    """Writes exported.onnx and fused.onnx; eager attention, because that is what the optimiser for BERT recognises."""
    import torch
    from onnxruntime.transformers import optimizer

    class PooledVectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = load_torch_model(folder, attn_implementation="eager")

        def forward(self, input_ids, attention_mask):
            return self.model({"input_ids": input_ids, "attention_mask": attention_mask})["sentence_embedding"]

    tokens, mask = torch.full((2, 8), 2000), torch.ones((2, 8), dtype=torch.int64)
    names, axes = ["input_ids", "attention_mask"], {0: "rows", 1: "length"}
    path = str(folder / "exported.onnx")
    with torch.no_grad():
        torch.onnx.export(
            PooledVectors().eval(),
            (tokens, mask),
            path,
            input_names=names,
            output_names=["vectors"],
            dynamic_axes={name: axes for name in names},
            opset_version=17,
            dynamo=False,
        )
    fused = optimizer.optimize_model(path, model_type="bert", num_heads=12, hidden_size=384, opt_level=0)
    fused.save_model_to_file(str(folder / "fused.onnx"))


def draw_model(folder: Path, shape: str) -> None:
    """Writes FOLDER/model: six layers of a known shape with drawn weights, and the tokenizer of MiniLM."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer, models

    from qrag_jax.models.encoder.sources import find_encoder

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(find_encoder("minilm")))
    ids: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": 0, "num_hidden_layers": NUM_LAYERS}
    torch.manual_seed(0)
    if shape == "modernbert":  # ModernBERT-base, whose other sizes are the defaults
        config: Any = transformers.ModernBertConfig(
            **ids, cls_token_id=101, sep_token_id=102, bos_token_id=101, eos_token_id=102
        )
    else:  # Qwen3-Embedding-0.6B
        config = transformers.Qwen3Config(
            **ids, hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8,
            head_dim=128, max_position_embeddings=32768, bos_token_id=101, eos_token_id=102,
        )  # fmt: skip
    transformers.AutoModel.from_config(config).save_pretrained(folder / "drawn")
    tokenizer.save_pretrained(folder / "drawn")
    read = models.Transformer(str(folder / "drawn"), max_seq_length=256)
    mode = "cls" if shape == "modernbert" else "lasttoken"
    modules = [read, models.Pooling(config.hidden_size, pooling_mode=mode), models.Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))


def peak(engine: str) -> float:
    """GFLOP/s of the best of 20 products of matrices of 2048 x 2048, in the engine's dtype."""
    size, times = 2048, []
    if engine.startswith("ours"):
        import jax
        import jax.numpy as jnp

        one: Any = jnp.ones((size, size), jnp.bfloat16 if "bf16" in engine else jnp.float32)
        product = jax.jit(lambda x: jnp.matmul(x, x, preferred_element_type=jnp.float32))
        run: Callable[[], Any] = lambda: product(one).block_until_ready()  # noqa: E731
    else:
        import torch

        torch.set_num_threads(CORES)
        one = torch.ones((size, size), dtype=torch.bfloat16 if "bf16" in engine else torch.float32)
        run = lambda: one @ one  # noqa: E731
    for _ in range(20):
        times.append(seconds(run))
    return 2 * size**3 / min(times) / 1e9


MAKE = {
    "ours": make_ours("float32"),
    "ours bf16": make_ours("bfloat16"),
    "torch fp32": make_torch(bf16=False),
    "torch bf16": make_torch(bf16=True),
    "onnxruntime": make_onnx,
}


def jobs_of(engine: str, folder: Path) -> dict[str, tuple[Job, Rows]]:
    """`set/kind` -> what to run on what; texts of the rivals only for `mixed`, to save time."""
    jobs, sets = MAKE[engine](folder), load_sets(folder)
    is_ours = engine.startswith("ours")
    kept = [(name, kind) for name in SETS for kind in jobs if kind == "encoder" or is_ours or name == "mixed"]
    return {f"{name}/{kind}": (jobs[kind], sets[name]) for name, kind in kept}


def answers_of(engine: str, folder: Path, tag: str) -> Callable[[str], Any]:
    """Command -> what it answers."""
    jobs = jobs_of(engine, folder)
    chosen: dict[str, Any] = {}

    def warm_all(most: int) -> None:
        for name, (job, rows) in jobs.items():
            chosen[name] = warm(Job(job.run, job.settings[:most]), rows, folder / f"{tag}-{name}")

    commands: dict[str, Callable[[], Any]] = {
        "warm": lambda: warm_all(len(TOKENS_PER_BATCH) * 2),
        "warm first settings": lambda: warm_all(2),
        "settings": lambda: {name: show(setting) for name, setting in chosen.items()},
        "measure": lambda: {name: seconds(job.run, chosen[name], rows) for name, (job, rows) in jobs.items()},
    }
    return lambda command: commands[command]()


def show(setting: Any) -> str:
    if setting is None:
        return "as called"
    *graph, size = setting if isinstance(setting, tuple) else (setting,)
    return " ".join([*graph, f"{size} tokens"])


def warm(job: Job, rows: Rows, path: Path) -> Any:
    """The fastest setting on a third of the rows; writes the vectors of all rows, which every shape is compiled for."""
    part = Rows(rows.texts[::3], rows.tokens[::3], rows.lengths[::3])
    taken = {}
    for setting in job.settings if len(job.settings) > 1 else ():
        job.run(setting, part)
        taken[setting] = seconds(job.run, setting, part)
    best = min(taken, key=taken.__getitem__) if taken else job.settings[0]
    path.parent.mkdir(exist_ok=True)
    np.save(f"{path}.npy", job.run(best, rows))
    return best


def seconds(run: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "export":
        export_onnx(Path(arguments[0]))
    elif command == "draw":
        draw_model(Path(arguments[0]), arguments[1])
    elif command == "peak":
        print(f"{peak(arguments[0]):.0f}")
    else:
        serve(lambda: answers_of(arguments[0], Path(arguments[1]), arguments[2]))


if __name__ == "__main__":
    main()
