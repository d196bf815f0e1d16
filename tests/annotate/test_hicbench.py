"""The builder of questions with dense evidence: stages by a script, rejections by reason, resuming, what is written."""

import json
from itertools import count as numbers

import pytest
from support.passages import count
from support.scripted_models import build_script, document_of, stage_of

from qrag_jax.annotate import hicbench
from qrag_jax.annotate.hicbench import HiCBenchConfig, build_hicbench, write_hicbench
from qrag_jax.data.corpora.file_questions import read_with_problems
from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.types import InputError, UsageError

SMALL = HiCBenchConfig(num_one=2, num_two=1, one_tokens=(10, 60), two_tokens=(10, 60))
DOCUMENTS = [document_of("Mill"), document_of("Bridge"), document_of("Road")]


def build(documents=DOCUMENTS, config=SMALL, generator=None, **answers):
    return build_hicbench(documents, generator or ScriptedGenerator(build_script(**answers)), count, config)


def test_questions_of_one_section_and_of_two():
    generator = ScriptedGenerator(build_script())
    built = build(generator=generator)
    assert built.num_tried == len(built.questions) == 9 and built.rejected == {} and built.num_unreadable == 0
    assert [one.kind for one in built.questions] == ["T1", "T1", "T2"] * 3
    for one in built.questions:
        text = DOCUMENTS[one.document].text.text
        assert len(one.spans) == int(one.kind[1]) and all(
            one.spans[i][1] <= one.spans[i + 1][0] for i in range(len(one.spans) - 1)
        )
        said = [text[start:end] for start, end in one.evidence]
        assert len(said) == 2 * len(one.spans) and all(s.startswith(("Fact 0", "Fact 1")) for s in said)
        assert all(any(a <= start and end <= b for a, b in one.spans) for start, end in one.evidence)
        assert (one.coverage, one.facts) == (1.0, ("Fact 0 is so.", "Fact 1 is so."))
    stages = [stage_of(prompt) for prompt in generator.asked]
    made = {stage: stages.count(stage) for stage in dict.fromkeys(stages)}
    assert made == {"summaries": 9, "questions": 9, "evidence": 45, "facts": 9, "answers": 45, "coverage": 45}
    assert built.calls.num_calls == len(generator.asked)
    question = next(prompt for prompt in generator.asked if stage_of(prompt) == "questions")
    assert "Mill 0: A section about facts.\nMill 1: A section about facts." in question[1].content


def test_evidence_counts_where_four_of_five_draws_name_it():
    # One T1 section: sentence 1 is named 4 times, 2 three times, 3 always, and 99 is no sentence.
    draws = iter([[1, 2, 3, 99], [1, 2, 3, 99], [1, 2, 3, 3], [1, 3], [3, 99]])
    config = HiCBenchConfig(num_one=1, num_two=0, one_tokens=(10, 60))
    built = build(DOCUMENTS[:1], config, evidence=lambda _: json.dumps({"sentences": next(draws)}))
    (one,) = built.questions
    text = DOCUMENTS[0].text.text
    assert [text[start:end].split(" of")[0] for start, end in one.evidence] == ["Fact 0", "Fact 2"]


@pytest.mark.parametrize(
    "stage, answer, reason",
    [
        ("questions", "What is it?", hicbench.NO_QUESTION),
        ("evidence", '{"sentences": []}', hicbench.NO_EVIDENCE),
        ("evidence", '{"sentences": [99999]}', hicbench.NO_EVIDENCE),
        ("evidence", "all of them", hicbench.NO_EVIDENCE),
        ("evidence", '{"sentences": [0]}', hicbench.THIN_EVIDENCE),
        ("facts", '{"claims": []}', hicbench.NO_FACTS),
        ("coverage", '{"entailed": [true, false]}', hicbench.NOT_COVERED),
    ],
)
def test_rejections_are_counted_by_reason(stage, answer, reason):
    built = build(**{stage: answer})
    assert built.questions == () and built.rejected == {reason: 9}
    assert (built.num_unreadable > 0) == (not answer.startswith("{"))


def test_coverage_is_the_mean_over_draws_and_must_be_above():
    config = HiCBenchConfig(num_one=1, num_two=0, one_tokens=(10, 60))
    verdicts = numbers()

    def one_of_ten_is_missing(_):
        return json.dumps({"entailed": [True, next(verdicts) != 0]})

    (one,) = build(DOCUMENTS[:1], config, answers=by_number(), coverage=one_of_ten_is_missing).questions
    assert one.coverage == pytest.approx(0.9)
    halves = lambda _: json.dumps({"entailed": [True, next(verdicts) >= 2]})  # noqa: E731
    verdicts = numbers()
    built = build(DOCUMENTS[:1], config, answers=by_number(), coverage=halves)
    assert built.rejected == {hicbench.NOT_COVERED: 1}  # exactly 0.8


def by_number():
    made = numbers()
    return lambda _: f"Answer {next(made)}."


def test_sections_of_other_sizes_are_no_contexts():
    built = build(config=HiCBenchConfig(one_tokens=(500, 600), two_tokens=(10, 60), num_two=1))
    assert built.rejected == {hicbench.NO_CONTEXT: 3} and {one.kind for one in built.questions} == {"T2"}
    whole = build([document_of("Mill", num_sections=1)])
    assert whole.questions == () and whole.rejected == {hicbench.NO_CONTEXT: 2} and whole.calls.num_calls == 0


def test_contexts_depend_on_the_document_and_the_seed_alone():
    alone = [one.spans for one in build([DOCUMENTS[1]]).questions]
    assert alone == [one.spans for one in build().questions if one.document == 1]


class Dies(Exception):
    """Pulls the plug."""


def test_a_build_that_is_killed_makes_no_call_twice(tmp_path):
    whole, paid, deaths = build(), [0], 0
    journal = Journal(tmp_path / "journal.sqlite")
    script = build_script()

    def dying(prompt):
        if paid[0] in (20, 90) and deaths == (paid[0] == 90):
            raise Dies
        paid[0] += 1
        return script(prompt)

    while True:
        try:
            built = build(generator=JournaledGenerator(ScriptedGenerator(dying), journal, claim_size=1))
        except Dies:
            deaths += 1
            continue
        break
    assert deaths == 2 and built.questions == whole.questions
    # Equal prompts, as of equal answers, are paid for once.
    assert (
        paid[0] <= whole.calls.num_calls
        and built.calls.num_calls + built.calls.num_from_journal == whole.calls.num_calls
    )
    again = build(generator=JournaledGenerator(ScriptedGenerator(dying), journal))
    assert again.calls.num_calls == 0 and again.questions == whole.questions


def test_a_failed_call_rejects_nothing_but_is_an_error():
    with pytest.raises(InputError, match="facts: 9 of 9 calls of the language model failed; the first one: down"):
        build(facts=failed("down"))


def test_what_is_written_is_read_by_the_study(tmp_path):
    built = build()
    write_hicbench(tmp_path, built, DOCUMENTS)
    rows = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        for item in row["evidence"]:
            text = (tmp_path / "documents" / item["file"]).read_text(encoding="utf-8")
            assert text[item["start"] : item["end"]] == item["text"]
    assert (rows[0]["id"], rows[0]["type"], rows[2]["type"]) == ("T1-0000", "T1", "T2")
    task, problems = read_with_problems(tmp_path / "documents", tmp_path / "questions.jsonl", "hicbench")
    assert not problems and len(task.questions) == 9
    assert [len(one.evidence) for one in task.questions] == [len(one.evidence) for one in built.questions]


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("num_draws", 0, "at least 1"),
        ("min_seen", 6, "at most num_draws, 5"),
        ("one_tokens", (3, 2), "give the smaller one first"),
    ],
)
def test_wrong_configs(field, value, message):
    with pytest.raises(UsageError, match=f"hicbench.{field} .*{message}"):
        HiCBenchConfig(**{field: value})
