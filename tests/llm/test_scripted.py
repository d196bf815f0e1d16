"""A scripted language model: three kinds of script, and a file of lines."""

import json

import pytest

from qrag_jax.llm.scripted import ScriptedGenerator, failed, load_script
from qrag_jax.types import (
    Choice,
    Generation,
    InputError,
    JsonSchema,
    Message,
    Regex,
    Sampling,
    TextGenerator,
    UsageError,
)

SAMPLING = Sampling()


def prompts(*texts):
    return [[Message("system", "Say it."), Message("user", text)] for text in texts]


def texts_of(generator, *texts, sampling=SAMPLING):
    return [one.text for one in generator.generate(prompts(*texts), sampling=sampling)]


# --- scripts


def test_a_function_answers():
    generator = ScriptedGenerator(lambda prompt: prompt[-1].content.upper(), model="shout")
    assert isinstance(generator, TextGenerator) and generator.model == "shout"
    assert generator.generate(prompts("a b", "c"), sampling=SAMPLING) == [
        Generation("A B", "stop", 4, 2),
        Generation("C", "stop", 3, 1),
    ]
    assert generator.asked == [tuple(prompt) for prompt in prompts("a b", "c")]


def test_a_table_answers_by_the_last_message():
    generator = ScriptedGenerator({"a": "one", "b": failed("no line")})
    first, second, third = generator.generate(prompts("a", "b", "c"), sampling=SAMPLING)
    assert (first.text, second.error) == ("one", "no line")
    assert (third.text, third.finish_reason, third.error) == ("", "error", "the script has no answer to this message")


def test_a_list_answers_in_order_over_all_batches():
    generator = ScriptedGenerator(["one", "two"])
    assert texts_of(generator, "a") == ["one"]
    second, third = generator.generate(prompts("a", "a"), sampling=SAMPLING)
    assert second.text == "two" and third.error == "the script ends after 2 answers"


def test_every_answer_is_told_when_it_is_there():
    asked_before = []
    generator = ScriptedGenerator(lambda prompt: prompt[-1].content)
    told = {}

    def finished(place, generation):
        told[place] = generation
        asked_before.append(len(generator.asked))

    assert generator.generate(prompts("a", "b"), sampling=SAMPLING, finished=finished) == [told[0], told[1]]
    assert asked_before == [1, 2]


def test_an_answer_is_cut_at_max_tokens_and_before_a_stop():
    generator = ScriptedGenerator(lambda prompt: "one  two three. four")
    cut, whole, stopped, empty = (
        generator.generate(prompts("a"), sampling=sampling)[0]
        for sampling in (
            Sampling(max_tokens=2),
            Sampling(max_tokens=4),
            Sampling(max_tokens=3, stop=("four", ".")),
            Sampling(stop=("one",)),
        )
    )
    assert cut == Generation("one  two", "length", 3, 2)
    assert whole == Generation("one  two three. four", "stop", 3, 4)
    assert stopped == Generation("one  two three", "stop", 3, 3)
    assert (empty.text, empty.finish_reason, empty.is_empty) == ("", "error", True)
    assert empty.error is not None and "the answer is empty" in empty.error


def test_a_whole_generation_is_handed_on():
    generation = Generation("one two three", "length", 7, 9, logprobs=(-1.0,))
    assert ScriptedGenerator([generation]).generate(prompts("a"), sampling=Sampling(max_tokens=1)) == [generation]


def test_a_negative_delay_is_refused():
    with pytest.raises(UsageError, match="delay -1: must be a finite number of seconds"):
        ScriptedGenerator([], delay=-1)


# --- files


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_the_first_line_that_matches_answers(tmp_path):
    path = write(
        tmp_path / "script.jsonl",
        {"match": "Austria", "answer": "Vienna [1]."},
        "",
        {"match": "broken", "error": "the server is down"},
        {"match": "long", "answer": "and so on", "finish_reason": "length"},
        {"answer": "Not found."},
    )
    generator = load_script(path)
    answers = generator.generate(prompts("capital of Austria, broken?", "broken", "long", "else"), sampling=SAMPLING)
    assert [one.text for one in answers] == ["Vienna [1].", "", "and so on", "Not found."]
    assert [one.finish_reason for one in answers] == ["stop", "error", "length", "stop"]
    assert answers[1].error == "the server is down"


def test_another_file_is_another_model(tmp_path):
    one, other = (load_script(write(tmp_path / f"{text}.jsonl", {"answer": text})) for text in "ab")
    same = load_script(write(tmp_path / "copy.jsonl", {"answer": "a"}))
    assert one.model == same.model != other.model and one.model.startswith("scripted:")


def test_a_prompt_without_a_line_fails(tmp_path):
    generator = load_script(write(tmp_path / "script.jsonl", {"match": "a", "answer": "b"}))
    (answer,) = generator.generate(prompts("c"), sampling=SAMPLING)
    assert answer.text == "" and answer.error.endswith("script.jsonl: no line matches this prompt")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "empty file; expected lines"),
        ([{"answer": "a"}, "{"], "script.jsonl:2: not JSON"),
        (["[]"], "script.jsonl:1: expected lines"),
        ([{"match": "a"}], "script.jsonl:1: expected lines"),
        ([{"answer": "a", "error": "b"}], "script.jsonl:1: expected lines"),
        ([{"answers": "a"}], "script.jsonl:1: expected lines"),
        (["", {"answer": 3}], "script.jsonl:2: answer must be a text, got int"),
        ([{"error": ""}], "script.jsonl:1: error must be a text that is not empty"),
        ([{"answer": "a", "finish_reason": "error"}], 'finish_reason "error" needs the field "error"'),
    ],
)
def test_other_lines_are_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        load_script(write(tmp_path / "script.jsonl", *rows))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UsageError, match="none.jsonl: no such file; expected lines"):
        load_script(tmp_path / "none.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff")
    with pytest.raises(InputError, match="bytes.jsonl: cannot be read as UTF-8 text"):
        load_script(tmp_path / "bytes.jsonl")


# --- grammars


def test_a_reply_that_breaks_the_grammar_is_an_error_that_names_it():
    generator = ScriptedGenerator(["yes", "maybe", "ye", Generation("nope", "stop"), failed("down")])
    answers = generator.generate(prompts(*"abcde"), sampling=Sampling(grammar=Choice(("yes", "no"))))
    assert [answer.text for answer in answers] == ["yes", "", "", "", ""]
    broken = "the reply {!r} breaks the grammar Choice(texts=('yes', 'no')): it {} at character {}"
    assert [answer.error for answer in answers] == [
        None,
        broken.format("maybe", "has 'm'", 0),
        broken.format("ye", "ends too early", 2),
        broken.format("nope", "has 'p'", 2),
        "down",
    ]


def test_a_reply_that_was_cut_may_be_a_beginning():
    generator = ScriptedGenerator(["a b c", "a x c", "a b"])
    answers = generator.generate(prompts(*"abc"), sampling=Sampling(max_tokens=2, grammar=Regex("a b( c)+")))
    assert [(answer.text, answer.finish_reason) for answer in answers] == [
        ("a b", "length"),
        ("", "error"),
        ("", "error"),
    ]
    with pytest.raises(UsageError, match="grammar: JSON schema"):
        ScriptedGenerator(["a"]).generate(prompts("a"), sampling=Sampling(grammar=JsonSchema("{}")))
