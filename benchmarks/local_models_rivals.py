"""What other programs answer to the prompts of local_models.py, which starts this, maybe with another Python.

python benchmarks/local_models_rivals.py llama.cpp MODEL.gguf < JOB.json > ANSWERS.json
python benchmarks/local_models_rivals.py transformers FOLDER < JOB.json > ANSWERS.json

A job is {"prompts": [[id, ...], ...], "num_tokens": n, "ends": [id, ...]}. The answers are the new ids of each prompt,
greedy, one prompt after the other, and -1 behind those that an end token ended.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generate_engines import CORES, complete, llama_cpp_server

END = -1


def until_end(ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The ids before the first that ends an answer, which stands as `END`."""
    place = next((place for place, token in enumerate(ids) if token in ends), None)
    return list(ids) if place is None else [*ids[:place], END]


def ask_llama_cpp(model: Path, job: dict) -> list[list[int]]:
    server, answers = llama_cpp_server(model, rows=1), []
    for prompt in job["prompts"]:
        said = complete(server, prompt, job["num_tokens"])
        ids = until_end(said["tokens"], job["ends"])
        answers.append([*ids, END] if said["stop_type"] == "eos" and ids[-1:] != [END] else ids)
    return answers


def ask_transformers(folder: Path, job: dict) -> list[list[int]]:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(CORES)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def ask(prompt: Sequence[int]) -> list[int]:
        cache, last, chosen = DynamicCache(), torch.tensor([prompt]), []
        while len(chosen) < job["num_tokens"]:
            logits = model(last, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            last = logits[:, -1].argmax(-1, keepdim=True)
            chosen.append(int(last))
        return until_end(chosen, job["ends"])

    return [ask(prompt) for prompt in job["prompts"]]


ASK = {"llama.cpp": ask_llama_cpp, "transformers": ask_transformers}


def main() -> None:
    engine, model = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get into the answers
    json.dump(ASK[engine](Path(model), json.load(sys.stdin)), answers)
    answers.close()


if __name__ == "__main__":
    main()
