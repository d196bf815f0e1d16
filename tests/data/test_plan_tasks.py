"""Controlled tasks: everything follows from seed and config, and the shares are those that the config states."""

import numpy as np
import pytest

from qrag_jax.chunking.tree.level_ranges import NAMES, LevelRange
from qrag_jax.chunking.tree.plan_texts import parse_plans, trace_of
from qrag_jax.data.plan_tasks import HINT, PlanTask, PlanTaskConfig, accuracies, with_hint
from qrag_jax.models.chat.render import render_chat
from qrag_jax.types import Message, UsageError

_DOCUMENTS = pytest.mark.parametrize("documents", [1, 3])


def _task(seed: int = 7, **fields: object) -> PlanTask:
    return PlanTask(PlanTaskConfig(**{"kinds": 20, "train_prompts": 50, **fields}), seed)  # pyright: ignore


def _plans(text: str) -> list[list[int]]:
    return [[one.least, one.most] for one in parse_plans(text, NAMES)]


@_DOCUMENTS
def test_seed_and_config_fix_everything(documents):
    first, again, other = _task(documents=documents), _task(documents=documents), _task(8, documents=documents)
    for split in ("train", "eval"):
        records = first.records(split)
        assert records == again.records(split) == first.records(split) != other.records(split)
    assert len(first.records("train")) == 50
    draws = [task.sample(np.random.default_rng(1), 5) for task in (first, again)]
    assert draws[0] == draws[1]
    assert [*map(first.trace, draws[0])] == [*map(again.trace, draws[0])]
    assert first.start_examples(np.random.default_rng(1), 5) == again.start_examples(np.random.default_rng(1), 5)


def test_a_kind_has_one_right_range():
    task = _task()
    for record in task.records("train"):
        (kind,) = record["kinds"]
        assert task.words[kind] in record["messages"][0]["content"].split()
        assert record["label"] == [task.right[kind].least, task.right[kind].most]
    assert len(set(task.words)) == 20


def test_kinds_follow_zipf():
    task = _task(kinds=4, zipf=1.0)
    np.testing.assert_allclose(task.frequencies, np.array([12, 6, 4, 3]) / 25)  # 1, 1/2, 1/3, 1/4 of 25/12
    drawn = [record["kinds"][0] for record in task.sample(np.random.default_rng(0), 4_000)]
    np.testing.assert_allclose(np.bincount(drawn) / 4_000, task.frequencies, atol=0.03)


@_DOCUMENTS
@pytest.mark.parametrize("wide", [0.0, 0.5, 1.0])
def test_traces_are_too_wide_as_often_as_stated(documents, wide):
    task = _task(documents=documents, wide_traces=wide)
    pairs = []
    for record in task.sample(np.random.default_rng(2), 400):
        labels = record["label"] if documents > 1 else [record["label"]]
        pairs += zip(_plans(task.trace(record)), labels, strict=True)
    for (least, most), (right_least, right_most) in pairs:
        extra = (right_least - least, most - right_most)
        assert extra in {(0, 0), (1, 0)} or (extra == (0, 1) and right_least == 0)
    assert np.mean([plan != label for plan, label in pairs]) == pytest.approx(wide, abs=0.08)


def test_a_wide_trace_names_the_right_class():
    right, wide = _task(wide_traces=0.0), _task(wide_traces=1.0)
    for record in right.sample(np.random.default_rng(2), 20):
        said, widened = right.trace(record), wide.trace(record)
        assert said.split(".")[0] == widened.split(".")[0]
        assert said != widened


@_DOCUMENTS
def test_the_tokenizer_reads_every_text_back(documents):
    task = _task(documents=documents)
    tokenizer = task.tokenizer()
    unknown = tokenizer.encode("never", special=False)
    texts = [task.trace(record) for record in task.records("train")]
    texts += [m["content"] for chat in task.start_examples(np.random.default_rng(0), 50, 0.5) for m in chat["messages"]]
    for text in texts:
        ids = tokenizer.encode(text, special=False)
        assert tokenizer.decode(ids) == text and not set(unknown) & set(ids)
        assert len(ids) < 40


@_DOCUMENTS
def test_prompts_are_short_chats(documents):
    task = _task(documents=documents)
    tokenizer = task.tokenizer()
    for record in task.records("eval"):
        messages = [Message(**message) for message in record["messages"]]
        prompt = render_chat(tokenizer.chat_template or "", messages, tokenizer.special_tokens)
        ids = tokenizer.encode(prompt, special=True)
        assert len(ids) <= 24
        assert prompt.startswith("<|user|> ") and prompt.endswith("<|end|> <|assistant|>")
        assert len(tokenizer.eos_ids & set(ids)) == 1


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_start_is_right_on_the_stated_share(share):
    task = _task(kinds=120, start_share=share)
    assert task.frequencies[task.is_known].sum() == pytest.approx(round(14 * share) / 14, abs=0.01)
    classes = [{task.right[kind] for kind in np.flatnonzero(task.is_known == known)} for known in (True, False)]
    assert not classes[0] & classes[1]
    for kind, (belief, right) in enumerate(zip(task.belief, task.right, strict=True)):
        assert belief == right if task.is_known[kind] else belief.least == right.least or belief.most == right.most


def test_start_examples_teach_the_belief():
    task = _task(start_doubt=0.0)
    for chat in task.start_examples(np.random.default_rng(3), 100, hinted=0.0):
        question, answer = (message["content"] for message in chat["messages"])
        (kind,) = (task.words.index(word) for word in question.split() if word in task.words)
        assert _plans(answer) == [[task.belief[kind].least, task.belief[kind].most]]


@_DOCUMENTS
def test_hints_of_start_examples_are_followed_and_teach_no_kind(documents):
    task, told = _task(documents=documents, kinds=2, start_doubt=0.0), set()
    for chat in task.start_examples(np.random.default_rng(3), 200, hinted=1.0):
        question, answer = (message["content"] for message in chat["messages"])
        hint = question.split(f" {HINT} ")[1]
        assert answer.startswith(hint) and trace_of(answer).strip() != hint
        told.add(hint.split(".")[0])
    assert len(told) == 14


def test_both_averages_by_hand():
    records = [{"weight": 0.75, "macro": 0.5}, {"weight": 0.25, "macro": 0.5}]
    assert accuracies(records, [1.0, 0.0]) == (0.75, 0.5)
    assert accuracies(records, [0.0, 1.0]) == (0.25, 0.5)


@_DOCUMENTS
def test_evaluation_weighs_kinds(documents):
    task = _task(documents=documents, repeats=3)
    records = task.records("eval")
    assert accuracies(records, [1.0] * len(records)) == pytest.approx((1, 1))
    macro = [record["kinds"] for record in records if record["macro"]]
    assert np.bincount(np.ravel(macro)).tolist() == [3 * documents] * 20
    if documents == 1:
        of_first = [float(record["kinds"] == [0]) for record in records]
        assert accuracies(records, of_first) == pytest.approx((task.frequencies[0], 1 / 20))


def test_a_hint_stands_at_the_end_of_the_last_message():
    messages = [{"role": "system", "content": "Plan."}, {"role": "user", "content": "What?"}]
    assert with_hint(messages, "A gist.") == [messages[0], {"role": "user", "content": "What? Hint: A gist."}]
    assert messages[1]["content"] == "What?"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kinds": 0}, r"kinds 0: must lie in \[1, 4900\]"),
        ({"kinds": 5_000}, r"kinds 5000: must lie in \[1, 4900\]"),
        ({"documents": 5}, r"documents 5: must lie in \[1, 4\]"),
        ({"wide_traces": 1.5}, "wide_traces"),
        ({"zipf": -1.0}, "zipf"),
    ],
)
def test_bad_configs_are_refused(fields, reason):
    with pytest.raises(UsageError, match=reason):
        PlanTaskConfig(**fields)


def test_unknown_splits_are_refused():
    with pytest.raises(UsageError, match="train or eval"):
        _task().records("test")


def test_the_widest_range_is_no_label():
    assert LevelRange(0, len(NAMES) - 1) not in _task(kinds=200).right
