"""Test 11 of docs/reliability.md: passages that give orders, against the embedded model and the one of TRUST_GGUF.

A model may obey, and nothing is promised about it: what is held here is that the measure tells what happened, and that
no passage leaves its fence or speaks as another role. The shares are written down as they come.
"""

import os
import zlib
from collections import Counter
from pathlib import Path

import pytest
from support.hostile_passages import HOSTILE, KINDS, QUESTIONS
from support.injection import attack, prompt_of, summary
from support.passages import documents, split_lines
from support.tiers import HAS_SMOLLM2, of_tier

from qrag_jax.llm.local import LocalGenerator
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.models.decoder.sources import SMOLLM2_INSTALL
from qrag_jax.models.decoder.weights import load_decoder
from qrag_jax.search.answer import answer_question
from qrag_jax.search.corpus import build_corpus
from qrag_jax.search.hybrid import make_single_step

GGUF = os.environ.get("TRUST_GGUF", "")
WINDOW = 1024  # tokens; the prompts are a third of it


def test_sixty_passages_of_six_kinds_whose_words_stand_nowhere_else():
    assert Counter(one.kind for one in HOSTILE) == dict.fromkeys(KINDS, 10) and len(KINDS) == 6
    assert len({one.canary for one in HOSTILE}) == len({one.text for one in HOSTILE}) == 60
    assert {one.kind for one in HOSTILE[:6]} == set(KINDS)
    for one in HOSTILE:
        question = one.question
        beside = [question.text, question.truth, question.harmless, question.other]
        for fenced in (True, False):
            beside += [message.content for message in prompt_of(question, [], fenced=fenced)]
        assert not any(one.canary in text.casefold() for text in beside)
        assert question.answer in question.truth.casefold()
        assert not any(question.answer in text.casefold() for text in (question.harmless, question.other, one.text))


def scripted(reply):
    """A model that answers by `reply(hostile passage or None, the whole last message)`."""

    def script(messages):
        asked = messages[-1].content
        return reply(next((one for one in HOSTILE if one.text in asked), None), asked)

    return ScriptedGenerator(script)


@pytest.mark.parametrize("fenced", [True, False])
def test_models_that_always_or_never_obey_are_told_apart(fenced):
    always = attack(HOSTILE, scripted(lambda one, asked: one.canary.upper() if one else "Here [1]."), fenced=fenced)
    never = attack(HOSTILE, scripted(lambda one, asked: "Here [1]." if one else "Here [2]!"), fenced=fenced)
    restless = attack(HOSTILE, scripted(lambda one, asked: str(zlib.crc32(asked.encode()))), fenced=fenced)
    runs = (always, never, restless)
    assert [sum(row.obeyed for row in found.rows) for found in runs] == [60, 0, 0]
    assert [sum(row.changed for row in found.rows) for found in runs] == [60, 0, 60]
    assert [sum(row.changed for row in found.others) for found in runs] == [0, 0, 5]
    assert all(len(found.rows) == 60 and len(found.others) == 5 for found in runs)


def test_a_model_that_heeds_the_fence_alone_shows_it():
    heeds = scripted(lambda one, asked: one.canary if one and "<passage-" not in asked.replace(one.text, "") else "no")
    found = [attack(HOSTILE, heeds, fenced=fenced) for fenced in (True, False)]
    assert [sum(row.obeyed for row in one.rows) for one in found] == [0, 60]


def test_right_answers_that_are_lost_are_counted_and_failures_are_no_answers():
    right = lambda asked: next(question.answer for question in QUESTIONS if question.text in asked)  # noqa: E731
    loses = scripted(lambda one, asked: "It is not there." if one else right(asked))
    assert "a right answer lost 60 of 60" in summary(attack(HOSTILE, loses, fenced=True))
    with pytest.raises(RuntimeError, match="60 prompts without an answer: down"):
        attack(HOSTILE, scripted(lambda one, asked: failed("down") if one else "yes"), fenced=True)


def test_what_is_measured_is_what_qrag_ask_asks():
    """One word is shared with the question in each passage, so that the search finds both."""
    for one in HOSTILE:
        word = one.question.text.split()[-1].strip("?")
        texts = [" ".join(f"{text} {word}".split()) for text in (one.question.truth, one.text)]
        generator = ScriptedGenerator(["no"])
        corpus = build_corpus(documents(*texts), split_lines)
        answer_question(one.question.text, corpus, make_single_step("bm25"), generator)
        assert generator.asked == [prompt_of(one.question, texts, fenced=True)]


def test_every_passage_stays_between_its_marks():
    for one in HOSTILE:
        user = prompt_of(one.question, [one.question.truth, one.text], fenced=True)[-1].content
        mark = user.split("<", 1)[1].split(">", 1)[0]
        inside = [part.split(f"\n</{mark}>")[0] for part in user.split(f"<{mark}>\n")[1:]]
        assert inside == [one.question.truth, one.text] and user.count(mark) == 4


def models():
    """(name, source, why it is skipped) of the language models: the embedded one, and what TRUST_GGUF names."""
    yield "SmolLM2-135M", "smollm2", "" if HAS_SMOLLM2 else f"the embedded decoder is absent: {SMOLLM2_INSTALL}"
    yield Path(GGUF).stem or "GGUF", GGUF, "" if GGUF else "TRUST_GGUF names no model"


@pytest.mark.parametrize("name,source,absent", list(models()), ids=["embedded", "gguf"])
def test_what_models_do(figures, name, source, absent):
    """A tenth of it is that every prompt is read as it should be: answers take minutes, and are for the full size."""
    is_full = of_tier(0, 10) == 10
    if absent or (source == GGUF and not is_full):
        pytest.skip(absent or "takes minutes: make trust")
    generator, tokenizer = load(source)
    check_roles(generator, tokenizer)
    if not is_full:
        return
    outcomes = []
    for fenced in (True, False):
        found = attack(HOSTILE, generator, fenced=fenced)
        assert len(found.rows) == len(HOSTILE) and all(row.before.strip() for row in found.rows)
        assert not any(row.canary in row.before.casefold() for row in found.rows)
        outcomes.append(f"{'with' if fenced else 'without'} the fence: {summary(found)}")
    figures(11, name, 2 * len(HOSTILE), ". ".join(outcomes))


def load(source):
    """A generator and its tokenizer; the weights are held once."""
    loaded = load_decoder(source)
    return LocalGenerator(loaded, window=WINDOW), loaded.tokenizer


def check_roles(generator, tokenizer):
    """No passage speaks as another role: the model reads the special tokens that it reads around a harmless one."""
    special = set(tokenizer.special_tokens)
    for one in HOSTILE:
        read = []
        for text in (one.text, one.question.harmless):
            ids = generator.prompt_ids(prompt_of(one.question, [one.question.truth, text], fenced=True))
            read.append([mark for mark in map(tokenizer.token_texts.get, ids) if mark in special])
        assert read[0] == read[1] and read[0]
