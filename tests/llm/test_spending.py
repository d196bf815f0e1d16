"""Budgets: what fits is asked, what might not is not, and the sum is never exceeded."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.llm.wrappers import BudgetedGenerator
from qrag_jax.types import Cost, Generation, InputError, Message, Sampling, TextGenerator, UsageError

SAMPLING = Sampling(max_tokens=10)
ONE_CALL = 100 + 16 + 64 + 10  # the most that a call of one message of 100 bytes can take


def prompts(number, size=100):
    return [[Message("user", f"{place} ".ljust(size, "x"))] for place in range(number)]


def spending(prompt_tokens, completion_tokens):
    return ScriptedGenerator(lambda prompt: Generation("yes", "stop", prompt_tokens, completion_tokens))


def errors(generations):
    return [one.error for one in generations]


def test_without_a_limit_it_counts():
    inner = spending(30, 5)
    generator = BudgetedGenerator(inner, prompt_price=2.0, completion_price=10.0)
    assert isinstance(generator, TextGenerator) and generator.model == inner.model
    assert [one.text for one in generator.generate(prompts(100), sampling=SAMPLING)] == ["yes"] * 100
    assert generator.cost == Cost(prompt_tokens=3000, completion_tokens=500, dollars=(6000 + 5000) / 1e6)
    assert BudgetedGenerator(inner).cost == Cost()


def test_tokens_by_hand():
    """Two calls fit at first by what they may take, then one more by what these two have taken."""
    inner = spending(30, 5)
    generator = BudgetedGenerator(inner, max_tokens=2 * ONE_CALL + 10)
    answers = generator.generate(prompts(6), sampling=SAMPLING)
    # Spent 70 after two, of 390: one more may take 190 (260), then 105 + 190, 140 + 190, 175 + 190: all of them fit.
    assert errors(answers) == [None] * 6 and len(inner.asked) == 6
    (refused,) = generator.generate(prompts(1), sampling=SAMPLING)  # 210 + 190 > 390
    assert refused == Generation(
        "",
        "error",
        error="budget of 390 tokens: 210 are spent, and the next call may take 190 tokens; raise the budget to "
        "continue",
    )
    assert len(inner.asked) == 6


def test_dollars_by_hand():
    inner = spending(100, 10)
    price = 1e6 / 100  # a dollar for 100 tokens of a prompt, one for 50 of an answer
    generator = BudgetedGenerator(inner, max_dollars=4.0, prompt_price=price, completion_price=2 * price)
    answers = generator.generate(prompts(4), sampling=SAMPLING)
    # A call may take 1.80 + 0.20 dollars and takes 1.20: two at first (2.40 spent), none after them (4.40).
    assert errors(answers)[:2] == [None, None] and len(inner.asked) == 2
    assert answers[2].error == answers[3].error
    assert answers[2].error.startswith("budget of 4 dollars: 2.4 are spent, and the next call may take 190 tokens")
    assert generator.cost.dollars == pytest.approx(2.4)


def test_after_the_first_refusal_nothing_is_asked():
    inner = spending(10, 1)
    generator = BudgetedGenerator(inner, max_tokens=ONE_CALL)
    long = [Message("user", "x" * 1000)]
    answers = generator.generate([*prompts(1), long, *prompts(1)], sampling=SAMPLING)
    assert [error is None for error in errors(answers)] == [True, False, False]
    assert errors(generator.generate(prompts(1), sampling=SAMPLING)) == [answers[1].error]
    assert len(inner.asked) == 1


def test_a_budget_of_nothing_asks_nothing():
    inner = spending(0, 0)
    answers = BudgetedGenerator(inner, max_tokens=0).generate(prompts(2), sampling=SAMPLING)
    assert all(error.startswith("budget of 0 tokens: 0 are spent") for error in errors(answers))
    assert not inner.asked and BudgetedGenerator(inner, max_tokens=0).generate([], sampling=SAMPLING) == []


@given(st.integers(0, 4000), st.lists(st.tuples(st.integers(0, 180), st.integers(0, 10)), min_size=1, max_size=30))
def test_what_a_model_may_spend_never_exceeds_the_budget(budget, spent):
    inner = ScriptedGenerator([Generation("yes", "stop", *tokens) for tokens in spent])
    generator = BudgetedGenerator(inner, max_tokens=budget)
    told = {}
    answers = generator.generate(prompts(len(spent)), sampling=SAMPLING, finished=told.__setitem__)
    assert [told[place] for place in range(len(spent))] == answers
    cost = generator.cost
    assert cost.prompt_tokens + cost.completion_tokens <= budget
    num_asked = len(inner.asked)
    assert [error is None for error in errors(answers)] == [True] * num_asked + [False] * (len(spent) - num_asked)
    # It stops no earlier than it must.
    assert num_asked == len(spent) or sum(map(sum, spent[:num_asked])) + ONE_CALL > budget


def test_a_model_that_takes_more_than_it_may_is_stopped_soon():
    inner = spending(10 * ONE_CALL, 0)
    answers = BudgetedGenerator(inner, max_tokens=100 * ONE_CALL).generate(prompts(90), sampling=SAMPLING)
    assert len(inner.asked) == 64 and errors(answers).count(None) == 64


def test_bytes_count_and_not_characters():
    inner = spending(0, 0)
    generator = BudgetedGenerator(inner, max_tokens=ONE_CALL)
    assert generator.generate([[Message("user", "\u4e2d" * 34)]], sampling=SAMPLING)[0].error is not None  # 102 bytes
    half = [Message("user", "\ud800")]  # a lone surrogate is counted, not raised at
    assert BudgetedGenerator(inner, max_tokens=ONE_CALL).generate([half], sampling=SAMPLING)[0].error is None


def test_failed_calls_are_paid_too():
    generator = BudgetedGenerator(ScriptedGenerator([Generation("", "error", 50, 3, "reset")]))
    generator.generate(prompts(1), sampling=SAMPLING)
    assert generator.cost == Cost(prompt_tokens=50, completion_tokens=3)


def test_what_a_journal_has_costs_nothing(tmp_path):
    inner = spending(30, 5)
    for wrap in (
        lambda: JournaledGenerator(BudgetedGenerator(inner, max_tokens=400), Journal(tmp_path / "inside.sqlite")),
        lambda: BudgetedGenerator(JournaledGenerator(inner, Journal(tmp_path / "outside.sqlite"))),
    ):
        first = wrap().generate(prompts(2), sampling=SAMPLING)
        again = wrap()
        assert again.generate(prompts(2), sampling=SAMPLING) == [replace(one, from_journal=True) for one in first]
        budget = again if isinstance(again, BudgetedGenerator) else again.generator
        assert budget.cost == Cost()
    assert len(inner.asked) == 4


def test_a_model_that_ends_in_the_middle_is_counted():
    class Unplugged(ScriptedGenerator):
        def generate(self, prompts, *, sampling, finished=None):
            super().generate(prompts[:2], sampling=sampling, finished=finished)
            raise KeyboardInterrupt

    generator = BudgetedGenerator(Unplugged(lambda prompt: Generation("yes", "stop", 30, 5)))
    with pytest.raises(KeyboardInterrupt):
        generator.generate(prompts(4), sampling=SAMPLING)
    assert generator.cost == Cost(prompt_tokens=60, completion_tokens=10)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_tokens": -1}, "max_tokens -1: must be a finite number, 0 or more"),
        ({"max_dollars": float("nan"), "prompt_price": 1.0, "completion_price": 1.0}, "max_dollars nan"),
        ({"prompt_price": float("inf"), "completion_price": 1.0}, "prompt_price inf"),
        ({"completion_price": 1.0}, "give both or neither"),
        ({"max_dollars": 1.0}, "max_dollars: needs prompt_price and completion_price"),
    ],
)
def test_wrong_limits_are_refused(limits, message):
    with pytest.raises(UsageError, match=message):
        BudgetedGenerator(spending(1, 1), **limits)


def test_a_model_that_breaks_its_contract_is_refused():
    with pytest.raises(InputError, match="finish_reason 'error' with error None"):
        BudgetedGenerator(ScriptedGenerator([Generation("", "error")])).generate(prompts(1), sampling=SAMPLING)


@pytest.mark.parametrize("position", [0, 63])
def test_what_would_fail_every_call_ends_the_rounds(position):
    """64 calls are a round; a failure that is fatal ends the batch after it, also as its last one."""
    fatal = replace(failed("HTTP 401"), is_fatal=True)
    replies = [Generation("yes", "stop")] * position + [fatal] + [Generation("yes", "stop")] * 200
    inner = ScriptedGenerator(replies)
    answers = BudgetedGenerator(inner, max_tokens=10**9).generate(prompts(200), sampling=SAMPLING)
    assert len(inner.asked) == 64
    assert set(errors(answers)[64:]) == {"not asked, since another call failed: HTTP 401"}
    assert errors(answers).count(None) == 63
