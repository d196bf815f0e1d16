import pytest

from qrag_jax.eval.study.kept_answers import KeptGenerator
from qrag_jax.types import Generation, InputError, Message, Sampling

SAMPLING = Sampling()


class Parrot:
    """Says the prompt again; fails on what it was told to, and counts what it is asked."""

    def __init__(self, *failing):
        self.failing = failing
        self.calls = []

    def generate(self, prompts, *, sampling):
        texts = [prompt[-1].content for prompt in prompts]
        self.calls.append(texts)
        return [
            Generation("", "error", 3, 0, "no line") if text in self.failing else Generation(text, "stop", 3, 1)
            for text in texts
        ]


def prompts(*texts):
    return [[Message("system", "Say it."), Message("user", text)] for text in texts]


def test_what_was_answered_is_not_asked_again_and_what_failed_is(tmp_path):
    parrot, path = Parrot("b"), tmp_path / "answers" / "one.json"
    first = KeptGenerator(parrot, path).generate(prompts("a", "b", "c"), sampling=SAMPLING)
    assert [one.text for one in first] == ["a", "", "c"] and first[1].error == "no line"
    parrot.failing = ()
    second = KeptGenerator(parrot, path).generate(prompts("c", "b", "d"), sampling=SAMPLING)
    assert [one.text for one in second] == ["c", "b", "d"]
    assert parrot.calls == [["a", "b", "c"], ["b", "d"]]
    KeptGenerator(parrot, path).generate(prompts("a"), sampling=Sampling(seed=1))
    assert parrot.calls[-1] == ["a"]


def test_a_run_that_ends_in_the_middle_keeps_what_it_paid_for(tmp_path):
    class Unplugged(Parrot):
        def generate(self, prompts, *, sampling):
            if self.calls:
                raise RuntimeError("the line is dead")
            return super().generate(prompts, sampling=sampling)

    texts, path = [str(number) for number in range(40)], tmp_path / "one.json"
    with pytest.raises(RuntimeError):
        KeptGenerator(Unplugged(), path).generate(prompts(*texts), sampling=SAMPLING)
    parrot = Parrot()
    found = KeptGenerator(parrot, path).generate(prompts(*texts), sampling=SAMPLING)
    assert [one.text for one in found] == texts and parrot.calls == [texts[32:]]


def test_a_damaged_file_is_said_and_asked_for_again(tmp_path):
    parrot, path = Parrot(), tmp_path / "one.json"
    KeptGenerator(parrot, path).generate(prompts("a"), sampling=SAMPLING)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.warns(UserWarning, match="one.json: damaged"):
        KeptGenerator(parrot, path).generate(prompts("a"), sampling=SAMPLING)
    assert parrot.calls == [["a"], ["a"]]


def test_a_model_that_loses_an_answer_is_refused(tmp_path):
    class Forgetful(Parrot):
        def generate(self, prompts, *, sampling):
            return super().generate(prompts, sampling=sampling)[1:]

    with pytest.raises(InputError, match="1 answers to 2 prompts"):
        KeptGenerator(Forgetful(), tmp_path / "one.json").generate(prompts("a", "b"), sampling=SAMPLING)
