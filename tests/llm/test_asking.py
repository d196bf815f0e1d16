from qrag_jax.llm.json_answers import Boolean, Record
from qrag_jax.llm.judges import JudgeOptions, ask_each, calls_of, judge_name
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.types import Message


def test_outcomes_stand_under_the_keys_of_their_prompts():
    generator = ScriptedGenerator(lambda prompt: f'{{"x": {prompt[0].content}}}')
    prompts = {key: [Message("user", text)] for key, text in (("a", "true"), ("b", "maybe"), ("c", "false"))}
    outcomes = ask_each(generator, prompts, Record({"x": Boolean()}), JudgeOptions(max_asks=1))
    assert [outcomes[key].value for key in "abc"] == [{"x": True}, None, {"x": False}]
    assert outcomes["b"].error is not None
    assert [call.text for call in calls_of(outcomes.values())] == ['{"x": true}', '{"x": maybe}', '{"x": false}']


def test_a_judge_is_named_by_its_number_where_there_are_several():
    judges = [ScriptedGenerator([], model="m"), ScriptedGenerator([], model="n")]
    assert judge_name(judges[:1], 0) == "m" and judge_name(judges, 1) == "judge 2 (n)"


def test_a_users_way_of_asking_again_is_taken(tmp_path):
    (tmp_path / "again.user.txt").write_text("Nochmal: $reason")
    generator = ScriptedGenerator(["?", '{"x": true}'])
    prompts = {"a": [Message("user", "?")]}
    ask_each(generator, prompts, Record({"x": Boolean()}), JudgeOptions(prompts=tmp_path))
    assert generator.asked[1][-1].content.startswith("Nochmal: ")
