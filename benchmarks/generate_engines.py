"""The engines that generate.py compares. Run as a script, this is one engine in its process, told what to do on stdin.

python benchmarks/generate_engines.py serve "torch fp32" FOLDER    # generate.py starts it; FOLDER holds the prompts
python benchmarks/generate_engines.py export FOLDER                # writes the dequantised weights for transformers
"""

import copy
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

CORES = len(os.sched_getaffinity(0))
WEIGHTS = "weights"  # folder of a model that transformers loads
MODEL = "model.txt"  # its source
Prompts = Sequence[Sequence[int]]
# Prompts and a number of tokens -> the new ids of each, exactly so many: nothing ends an answer.
Generate = Callable[[Prompts, int], list[list[int]]]


def make_ours(storage: Any) -> Callable[[Path], dict[str, Generate]]:
    def make(folder: Path) -> dict[str, Generate]:
        from qrag_jax.models.decoder.generation import make_decoder
        from qrag_jax.models.decoder.weights import load_decoder
        from qrag_jax.types import Sampling

        loaded = load_decoder(model_of(folder), storage=storage)
        endless = copy.copy(loaded.tokenizer)
        endless.eos_ids = frozenset()
        # The same prompts come again and again: what is kept of them would make reading free.
        decoder = make_decoder(replace(loaded, tokenizer=endless), batch_size=8, prefix_bytes=0)

        def run(prompts: Prompts, count: int) -> list[list[int]]:
            return [list(answer.ids) for answer in decoder.generate_ids(prompts, Sampling(max_tokens=count))]

        return {"as called": run}

    return make


def model_of(folder: Path) -> str:
    return (folder / MODEL).read_text()


def make_torch(bf16: bool) -> Callable[[Path], dict[str, Generate]]:
    def make(folder: Path) -> dict[str, Generate]:
        import torch
        from transformers import AutoModelForCausalLM, DynamicCache

        torch.set_num_threads(CORES)
        dtype = torch.bfloat16 if bf16 else torch.float32
        model: Any = AutoModelForCausalLM.from_pretrained(folder / WEIGHTS, dtype=dtype).eval()
        model.generation_config.eos_token_id = None

        @torch.inference_mode()
        def call(prompts: Prompts, count: int) -> list[list[int]]:
            ids = torch.tensor(prompts)
            mask = torch.ones_like(ids)
            options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}
            return model.generate(ids, attention_mask=mask, **options)[:, ids.shape[1] :].tolist()

        @torch.inference_mode()
        def loop(prompts: Prompts, count: int) -> list[list[int]]:
            """The network alone, without what `generate` does around it."""
            cache, last, chosen = DynamicCache(), torch.tensor(prompts), []
            while len(chosen) < count:
                logits = model(last, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
                last = logits[:, -1].argmax(-1, keepdim=True)
                chosen.append(last)
            return torch.cat(chosen, 1).tolist()

        return {"generate": call, "bare loop": loop}

    return make


def make_llama_cpp(folder: Path) -> dict[str, Generate]:
    """llama.cpp behind its HTTP server, which is what the package offers; a request a prompt, all at once."""
    from qrag_jax.models.decoder.sources import find_decoder

    server = llama_cpp_server(find_decoder(model_of(folder)), rows=8)

    def ask(prompt: Sequence[int], count: int) -> list[int]:
        return complete(server, prompt, count, ignore_eos=True)["tokens"]

    def run(prompts: Prompts, count: int) -> list[list[int]]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: ask(prompt, count), prompts))

    return {"server": run}


def llama_cpp_server(model: Path, rows: int) -> Any:
    """llama.cpp with a GGUF file, for `rows` prompts at once of up to 1,024 tokens with their answers."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx, parameters.n_parallel, parameters.cache_prompt = rows * 1024, rows, False
    parameters.verbosity = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = CORES
    return xllamacpp.Server(parameters)


def complete(server: Any, prompt: Sequence[int], count: int, **options: Any) -> dict[str, Any]:
    """What the server says to a prompt of ids, greedy, read anew each time."""
    body = {"prompt": list(prompt), "n_predict": count, "temperature": 0.0, "samplers": ["temperature"]}
    body |= {"cache_prompt": False, "return_tokens": True} | options
    request = urllib.request.Request(
        f"{server.listening_address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())


MAKE = {
    "ours": make_ours("file"),
    "ours float32": make_ours("float32"),
    "torch fp32": make_torch(bf16=False),
    "torch bf16": make_torch(bf16=True),
    "llama.cpp": make_llama_cpp,
}


def export(folder: Path) -> None:
    """The same dequantised weights as a folder of safetensors, and their bytes in use."""
    import jax

    from qrag_jax.models.decoder.sources import find_decoder
    from qrag_jax.models.decoder.weights import load_decoder, save_decoder

    loaded = load_decoder(model_of(folder))
    (folder / WEIGHTS).mkdir()
    save_decoder(folder / WEIGHTS, loaded.config, loaded.params, loaded.tokenizer)
    sizes = {"parameters": sum(leaf.size for leaf in jax.tree.leaves(loaded.params))}
    sizes["gguf_bytes"] = find_decoder(model_of(folder)).stat().st_size
    (folder / "sizes.json").write_text(json.dumps(sizes))


def copy_bandwidth(size: int = 2**29, repeats: int = 5) -> float:
    """Bytes read and written a second by copying `size` bytes with a thread a core, best of some."""
    import numpy as np

    source, target = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)
    parts = np.array_split(np.arange(len(source)), CORES)
    spans = [slice(int(part[0]), int(part[-1]) + 1) for part in parts]
    with ThreadPoolExecutor(CORES) as pool:

        def copy_all() -> None:
            list(pool.map(lambda span: np.copyto(target[span], source[span]), spans))

        return 2 * source.nbytes / min(seconds(copy_all) for _ in range(repeats))


def seconds(run: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


def serve(engine: str, folder: Path) -> None:
    """Answers the commands that come in on stdin, one line of JSON each: a name and its arguments."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    ways = MAKE[engine](folder)
    prompts: dict[str, Prompts] = json.loads((folder / "prompts.json").read_text())

    commands: dict[str, Callable[..., Any]] = {
        "ways": lambda: list(ways),
        "ids": lambda way, job, count: ways[way](prompts[job], count),
        "time": lambda way, job, count: seconds(ways[way], prompts[job], count),
        "bandwidth": copy_bandwidth,
    }
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(commands[name](*arguments)), file=answers, flush=True)


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "export":
        export(Path(arguments[0]))
    else:
        serve(arguments[0], Path(arguments[1]))


if __name__ == "__main__":
    main()
