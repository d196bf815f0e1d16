"""What a language model makes of SqRAG's index phase: answers that can be read, what is no note, seconds a chunk.

    python benchmarks/note_readers.py DATA smollm2 MODEL.gguf [--chunks 12] [--most_relevant 10] [--sharing]

DATA holds hotpotqa/dev.jsonl.gz; the chunks are the first paragraphs of the pool of its dev questions. Every model asks
and answers (`structure.make_llm_reader`), greedily, without a journal. With --sharing the first 40 prompts of the
answers are then put once more to two fresh decoders with the same weights, one that keeps what it has read and one that
does not, both compiled before. Says nothing of how good the notes are.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from worlds import machine

from qrag_jax.annotate.ask_chunks import Reading
from qrag_jax.annotate.chunk_questions import QuestionsConfig, make_llm_reader
from qrag_jax.data.questions.multihop import READERS
from qrag_jax.eval.notes.note_sets import passage_pool
from qrag_jax.llm.local import LocalGenerator
from qrag_jax.models.decoder.weights import LoadedDecoder, best_storage, load_decoder
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.types import Message, Sampling

SHARED_PROMPTS, WARM_PROMPTS = 40, 9


@dataclass
class Recorded:
    """A model, its prompts and the texts of its answers; without grammars where `is_free`."""

    generator: LocalGenerator
    is_free: bool
    asked: list[tuple[list[Message], Sampling, str]] = field(default_factory=list)

    @property
    def model(self) -> str:
        return self.generator.model

    def takes_grammar(self, grammar) -> bool:
        return not self.is_free and self.generator.takes_grammar(grammar)

    def generate(self, prompts, *, sampling, finished=None):
        answers = self.generator.generate(prompts, sampling=sampling, finished=finished)
        self.asked += [(list(prompt), sampling, one.text) for prompt, one in zip(prompts, answers, strict=True)]
        return answers


def measure(source: str, loaded: LoadedDecoder, args: argparse.Namespace) -> dict:
    embed = make_embedder(load_encoder("minilm"))
    examples = READERS["hotpot"](args.data / "hotpotqa" / "dev.jsonl.gz").examples
    pool = passage_pool(examples[:10], embed.count_tokens)
    chunks = pool.chunks[: args.chunks]
    generator = Recorded(LocalGenerator(loaded), args.no_grammar)
    ends: dict[str, float] = {}
    readings: list[Reading] = []
    began = time.perf_counter()

    def note_time(stage, done, of, generation):
        ends[stage] = time.perf_counter() - began

    config = QuestionsConfig(num_questions=args.num_questions, most_relevant=args.most_relevant)
    read = make_llm_reader(generator, embed, config, progress=note_time, finished=readings.append)
    found = read(pool.documents, chunks)
    if args.show:
        for prompt, _, text in generator.asked:
            print(f"--- {prompt[-1].content[-160:]!r}\n    {text}")
        for note in found.notes:
            print(f"=== {note.text!r} <- {note.quote!r} cross {note.asking != note.answering}")
    num_cross = sum(note.asking != note.answering for note in found.notes)
    row = {
        "model": Path(source).name,
        "grammar": not args.no_grammar,
        **{name: value for name, value in asdict(readings[0]).items() if name != "errors"},
        "num_cross_chunk": num_cross,
        "left_out": dict(found.left_out),
        "errors": readings[0].errors,
        "question_seconds_a_chunk": ends["questions"] / len(chunks),
        "answer_seconds_a_chunk": (ends["answers"] - ends["questions"]) / len(chunks),
    }
    if not args.sharing:
        return row
    answering = [one for one in generator.asked if len(one[0]) == 2 and "Question: " in one[0][1].content]
    return row | shared_seconds(loaded, [one[0] for one in answering], answering[0][1])


def shared_seconds(loaded: LoadedDecoder, prompts: list[list[Message]], sampling: Sampling) -> dict:
    seconds = {}
    for name, prefix_bytes in (("seconds_beginnings_read_once", None), ("seconds_each_read_whole", 0)):
        LocalGenerator(loaded, prefix_bytes=prefix_bytes).generate(prompts[:WARM_PROMPTS], sampling=sampling)
        fresh = LocalGenerator(loaded, prefix_bytes=prefix_bytes)
        start = time.perf_counter()
        fresh.generate(prompts[:SHARED_PROMPTS], sampling=sampling)
        seconds[name] = time.perf_counter() - start
    return seconds | {"num_shared_prompts": len(prompts[:SHARED_PROMPTS])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--num_questions", type=int, default=10)
    parser.add_argument("--most_relevant", type=int, default=10)
    parser.add_argument("--no_grammar", action="store_true", help="parse what the model writes freely")
    parser.add_argument("--sharing", action="store_true", help="measure what common beginnings save, too")
    parser.add_argument("--show", action="store_true", help="print all answers")
    args = parser.parse_args()
    for model in args.models:
        loaded = load_decoder(model, storage=best_storage(model))
        print(json.dumps(measure(model, loaded, args) | machine()), flush=True)


if __name__ == "__main__":
    main()
