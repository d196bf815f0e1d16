"""Test 12 of docs/reliability.md: searches, indices and answers without end in one process, and nothing grows."""

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
from support.encoders import random_encoder
from support.networks import VECTOR, linear_network
from support.passages import split_lines
from support.talkers import tiny_talker
from support.tiers import of_tier

from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.local import LocalGenerator
from qrag_jax.llm.prompts import PromptTemplate
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.multi_step_search import action_bank, search_bank
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, QRagRetriever
from qrag_jax.search.answer import answer_question, make_fill
from qrag_jax.search.context.pack import Budget
from qrag_jax.search.corpus import build_corpus
from qrag_jax.search.hybrid import make_single_step
from qrag_jax.types import Document, Sampling

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads /proc")
WORDS = "mary john milk kitchen garden office football rained empty went took there".split()
SHORTEST = 6  # chunks of a corpus
GOLDEN = (5**0.5 - 1) / 2  # multiples of it, without their whole parts, leave no gap
MOMENTS = 5
COMPILING = "/jax/core/compile/"
OWN_OBJECTS = 50  # that looking at the process makes
MAX_GROWTH = 16 << 20  # bytes that the memory of a process may move by itself, in all


@dataclass(frozen=True)
class Held:
    """What the process holds at a moment; of compilations all that were made so far."""

    compilations: int
    descriptors: int
    threads: int
    arrays: int  # of JAX, alive
    objects: int  # of Python, that its collector knows
    resident: int  # bytes


@contextmanager
def compilations():
    """Counts steps of compilation by their name: traces, lowerings, programs, also those that the disk had kept."""
    counted: Counter[str] = Counter()

    def hear(event: str, duration: float, **about) -> None:
        if event.startswith(COMPILING):
            counted[event] += 1

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        jax.jit(lambda x: x)(0)
        assert counted.total() > 0, "this release of jax tells of no compilation: nothing would be seen"
        yield counted
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)


def held(counted: Counter) -> Held:
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    descriptors, threads = (len(os.listdir(f"/proc/self/{folder}")) for folder in ("fd", "task"))
    return Held(counted.total(), descriptors, threads, len(jax.live_arrays()), len(gc.get_objects()), resident)


def warm_up(times: int) -> int:
    return min(times // 2, 500)


def live(step: Callable[[int], object], times: int) -> list[Held]:
    """What the process held at some moments of many calls, the first one after their warm-up."""
    moments = np.linspace(warm_up(times), times, MOMENTS).astype(int).tolist()
    found = []
    gc.collect()
    gc.freeze()  # what is there already is no concern of these calls, and slows the collector
    try:
        with compilations() as counted:
            for number in range(times):
                step(number)
                if number + 1 in moments:
                    found.append(held(counted))
    finally:
        gc.unfreeze()
    return found


def grown(found: list[Held], calls: int) -> list[str]:
    """Names of what has grown from the first moment to the last, over `calls` calls."""
    first, last = found[0], found[-1]
    names = ["compilations", "descriptors", "threads", "arrays"]
    grew = [name for name in names if getattr(last, name) > getattr(first, name)]
    if last.objects - first.objects > calls / 2 + OWN_OBJECTS:  # every second call would leave one
        grew.append("objects")
    return [*grew, "resident"] if slope(found, calls) * calls > MAX_GROWTH else grew


def slope(found: list[Held], calls: int) -> float:
    """Bytes of memory a call, by least squares."""
    return float(np.polyfit(np.linspace(0, calls, len(found)), [one.resident for one in found], 1)[0])


def said(found: list[Held], calls: int) -> str:
    """What was counted, for the page."""
    first, last, bytes_a_call = found[0], found[-1], slope(found, calls)
    return (
        f"compilations {first.compilations} then {last.compilations}, descriptors {first.descriptors} then "
        f"{last.descriptors}, threads {first.threads} then {last.threads}, JAX arrays {first.arrays} then "
        f"{last.arrays}, memory {bytes_a_call * calls / 2**20:+.1f} MB"
    )


def document(number: int, num_lines: int) -> Document:
    """Of its number: lines of three words, which are its chunks."""
    rng = np.random.default_rng(number)
    lines = [" ".join(words) for words in rng.choice(WORDS, (num_lines, 3))]
    return Document(f"{number}.txt", "\n".join(lines))


def num_lines(number: int) -> int:
    """From 6 to 12 or up to 960, each size as often as one of twice its length."""
    return round(SHORTEST * (of_tier(12, 960) / SHORTEST) ** (number * GOLDEN % 1))


def question(number: int) -> str:
    """Of one to six words."""
    return " ".join(np.random.default_rng(number).choice(WORDS, 1 + number % 6))


@pytest.fixture(scope="module")
def retriever():
    """A frozen encoder of one layer under linear towers, none of it compiled yet."""
    encoder = random_encoder("bert", WORDS, hidden_size=VECTOR, num_layers=1, num_heads=2, intermediate_size=8)
    model = ModelConfig(encoder=EncoderSpec("scratch", window=8, question_window=8))
    constants = {"mean": np.zeros(VECTOR, np.float32), "std": np.ones(VECTOR, np.float32)}
    network = linear_network()
    return QRagRetriever(model, EnvConfig(num_steps=2), network, network.init(jax.random.key(0)), encoder, constants)


def make(retriever, number):
    corpus = build_corpus([document(number, num_lines(number))], split_lines, retriever.chunk_encoder)
    return action_bank(retriever, corpus)


def hold(figures, what, times, step):
    """Does something many times, finds that nothing grows, and writes the row."""
    found, calls = live(step, times), times - warm_up(times)
    assert grown(found, calls) == [], said(found, calls)
    figures(12, what, times, f"after {warm_up(times):,} and at the end: {said(found, calls)}")


def test_searches(retriever, figures):
    index = make(retriever, 3)
    hold(figures, "searches in one process", of_tier(20, 10_000), lambda number: search_bank(index, question(number)))


def test_indices(retriever, figures):
    """Of many sizes, each searched once and dropped: a service that indexes what comes with a request."""
    sizes, times = set(), of_tier(16, 1000)

    def step(number):
        index = make(retriever, number)
        sizes.add(index.num_chunks)
        search_bank(index, question(number))

    hold(figures, "indices made in one process", times, step)
    assert len(sizes) >= 6


def test_answers(figures, tmp_path):
    """Through a journal, by a decoder in this process; the witness by a script, as nothing is compiled for one."""
    corpora = [build_corpus([document(number, 12)], split_lines) for number in range(4)]
    template = PromptTemplate("answer", "", "<$mark> $passages\n\n$question")
    is_witness, times = of_tier(1, 0), of_tier(16, 1000)
    talker = LocalGenerator(tiny_talker(max_positions=384))
    model = ScriptedGenerator(lambda messages: "milk") if is_witness else talker
    generator = JournaledGenerator(model, Journal(tmp_path / "journal.sqlite"))
    retrieve, fill = make_single_step("bm25"), make_fill(Budget(8, max_passages=1))

    def step(number):
        corpus = corpora[number % len(corpora)]
        asked = f"{corpus.texts[0].split()[0]} {number:06}"
        sampling = Sampling(max_tokens=4)
        answer = answer_question(asked, corpus, retrieve, generator, fill=fill, template=template, sampling=sampling)
        assert answer.generation.error is None and not answer.generation.from_journal

    hold(figures, "answers in one process", times, step)


def test_what_grows_is_seen(retriever):
    """A leak of each kind that is looked for, through the same eyes."""
    left: list[object] = []
    index, stop = make(retriever, 3), threading.Event()
    leaks = {
        "compilations": lambda number: jax.jit(lambda x: x + number)(1.0),
        "descriptors": lambda number: left.append(os.open(os.devnull, os.O_RDONLY)),
        "threads": lambda number: threading.Thread(target=stop.wait).start(),
        "arrays": lambda number: left.append(jax.device_put(np.ones(number + 1))),
        "objects": lambda number: left.append([[] for _ in range(50)]),
        "resident": lambda number: left.append(np.ones(1 << 22)),  # too large for memory that was used before
    }
    try:
        for name, leak in leaks.items():
            found = live(lambda number, leak=leak: (search_bank(index, "milk"), leak(number)), 8)
            assert name in grown(found, 4)
        assert grown(live(lambda number: search_bank(index, "milk"), 8), 4) == []
    finally:
        stop.set()
        for descriptor in (each for each in left if isinstance(each, int)):
            os.close(descriptor)
