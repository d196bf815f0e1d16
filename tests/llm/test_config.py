import stat
import sys
import types

import pytest
from support.bad_server import MODEL, numbered_prompts, serve_badly

from qrag_jax.llm.config import LlmConfig, default_journal, make_generator
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.types import Choice, Generation, InputError, Message, Sampling, TextGenerator, UsageError

ASK = (Message("user", "where is the key?"),)
PRICES = "prompt_per_million_tokens: 2.0\ncompletion_per_million_tokens: 10.0\n"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.jsonl"
    path.write_text(
        '{"match": "key", "answer": "In the red box [1]."}\n{"match": "bad", "error": "the server is down"}\n'
    )
    return str(path)


def scripted(script, **more):
    return make_generator(LlmConfig("scripted", script, **more))


def at_server(**more):
    return make_generator(
        LlmConfig(**{"llm": "openai", "llm_model": "m", "base_url": "http://127.0.0.1:9/v1", "no_journal": True} | more)
    )


def test_scripted_without_a_journal(script):
    generator = scripted(script, no_journal=True)
    assert isinstance(generator, TextGenerator) and generator.model.startswith("scripted:")
    assert (generator.window, generator.count) == (None, None)
    heard = []
    (answer,) = generator.generate([ASK], sampling=Sampling(), finished=lambda place, found: heard.append(found))
    assert answer == Generation("In the red box [1].", "stop", 4, 5) and heard == [answer]


def test_the_journal_of_the_user_is_theirs_alone(script, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not scripted(script).generate([ASK], sampling=Sampling())[0].from_journal
    (again,) = scripted(script).generate([ASK], sampling=Sampling())
    assert again.from_journal and again.text == "In the red box [1]."
    path = tmp_path / "cache" / "qrag_jax" / "journal.sqlite"
    assert path == default_journal() and path.is_file()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not scripted(script, no_journal=True).generate([ASK], sampling=Sampling())[0].from_journal


def test_a_relative_cache_folder_is_ignored_as_the_standard_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert default_journal() == tmp_path / ".cache" / "qrag_jax" / "journal.sqlite"


def test_a_cache_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="the journal's folder cannot be created .*no_journal") as caught:
        default_journal()
    assert caught.value.file == str(tmp_path / "file" / "qrag_jax")


def test_a_journal_by_its_path(script, tmp_path):
    path = tmp_path / "mine.sqlite"
    for from_journal in (False, True):
        (answer,) = scripted(script, journal=path).generate([ASK], sampling=Sampling())
        assert answer.from_journal == from_journal
    (tmp_path / "damaged").write_text("this is no journal" * 100)
    with pytest.raises(InputError, match="journal names another file, no_journal caches no answers") as caught:
        scripted(script, journal=tmp_path / "damaged")
    assert str(caught.value).startswith(str(tmp_path / "damaged"))


def test_a_budget_stops_and_what_is_in_the_journal_costs_none_of_it(script, tmp_path):
    journal = {"journal": tmp_path / "journal"}
    scripted(script, **journal).generate([ASK], sampling=Sampling(max_tokens=9))
    poor = scripted(script, max_llm_tokens=1, **journal)
    known, new = poor.generate([ASK, (Message("user", "another key"),)], sampling=Sampling(max_tokens=9))
    assert known.from_journal and known.error is None
    assert new.error is not None and new.error.startswith("budget of 1 tokens")


def test_a_budget_of_dollars(script, tmp_path):
    (tmp_path / "prices.yaml").write_text(PRICES)
    config = {"no_journal": True, "prices": tmp_path / "prices.yaml"}
    (answer,) = scripted(script, max_dollars=1.0, **config).generate([ASK], sampling=Sampling())
    assert answer.error is None
    (answer,) = scripted(script, max_dollars=0.0, **config).generate([ASK], sampling=Sampling())
    assert answer.error is not None and answer.error.startswith("budget of 0 dollars")


@pytest.mark.parametrize(("named", "source"), [({}, "smollm2"), ({"llm_model": "my.gguf"}, "my.gguf")])
def test_local_tells_its_window_and_counts(monkeypatch, named, source):
    """A stand-in for the module, so that no weights are needed."""

    class LocalGenerator(ScriptedGenerator):
        window = 99

        def __init__(self, source, engine):
            super().__init__(["yes"], model=source)

        def count_tokens(self, text):
            return len(text)

    module = types.ModuleType("local")
    module.LocalGenerator = LocalGenerator
    monkeypatch.setitem(sys.modules, "qrag_jax.llm.local", module)
    generator = make_generator(LlmConfig(no_journal=True, **named))
    assert (generator.model, generator.window) == (source, 99)
    assert generator.count is not None and generator.count("four") == 4


def test_openai_asks_nobody_before_it_is_asked():
    generator = at_server(deadline=5.0, concurrency=2)
    assert "m" in generator.model and (generator.window, generator.count) == (None, None)
    assert not generator.takes_grammar(Choice(("a",)))
    assert at_server(grammar_field="guided").takes_grammar(Choice(("a",)))


@pytest.mark.parametrize(
    ("url", "key_name", "name"),
    [
        ("https://api.openai.com/v1", None, "OPENAI_API_KEY"),
        ("https://eu.api.openai.com/v1", None, "OPENAI_API_KEY"),
        ("https://models.example/v1", None, "QRAG_API_KEY"),
        ("https://api.openai.com.example/v1", None, "QRAG_API_KEY"),
        ("https://models.example/v1", "OPENAI_API_KEY", "OPENAI_API_KEY"),
    ],
)
def test_an_openai_key_goes_to_openai_alone_unless_it_is_named(url, key_name, name):
    assert f"key_name={name!r}" in repr(at_server(base_url=url, key_name=key_name).generator)


def test_a_key_is_in_no_representation(monkeypatch):
    monkeypatch.setenv("CANARY_NAME", "sk-canary-value")
    generator = at_server(key_name="CANARY_NAME")
    assert "sk-canary-value" not in repr(generator) + generator.model + repr(vars(generator.generator))


def test_sampling_prices_and_what_is_given(tmp_path):
    (tmp_path / "prices.yaml").write_text(PRICES)
    config = LlmConfig("scripted", temperature=0.5, prices=tmp_path / "prices.yaml", max_answer_tokens=7)
    assert config.sampling == Sampling(max_tokens=7, temperature=0.5)
    prices = config.load_prices()
    assert prices is not None and prices.completion_per_million_tokens == 10
    assert config.given() == ["prices", "temperature", "llm"]
    assert LlmConfig(max_answer_tokens=7).given() == [] and LlmConfig().load_prices() is None


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"llm": "openai", "llm_model": "m"}, "llm", "give the server's address with base_url"),
        ({"llm": "openai", "base_url": "http://127.0.0.1:1/v1"}, "llm", "give the name of the model on the server"),
        ({"llm": "scripted"}, "llm", "give a JSONL file of answers with llm_model"),
        ({"llm": "another"}, "llm", "choose one of local, openai, scripted"),
        ({"base_url": "http://127.0.0.1:1/v1"}, "base_url", "works only with llm='openai', not with llm='local'"),
        ({"llm": "scripted", "llm_model": "x", "deadline": 3.0}, "deadline", "not with llm='scripted'"),
        ({"llm": "scripted", "llm_model": "x", "any_model": True}, "any_model", "works only with llm='openai'"),
        ({"grammar_field": "guided"}, "grammar_field", "works only with llm='openai'"),
        ({"max_dollars": 1.0}, "max_dollars", "needs prices; give them"),
        (
            {"llm": "openai", "llm_model": "m", "base_url": "http://api.openai.com/v1"}, "base_url",
            "would send the key unencrypted",
        ),
    ],
)  # fmt: skip
def test_fields_that_do_not_go_together(given, field, message):
    with pytest.raises(UsageError, match=message) as caught:
        make_generator(LlmConfig(no_journal=True, **given))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"llm": "scripted", "llm_model": "nowhere.jsonl"}, "nowhere.jsonl: no such file"),
        (
            {"key_name": "sk-live-1", "base_url": "http://127.0.0.1:1/v1"},
            "key_name: not the name of an environment var",
        ),
        ({"base_url": "ftp://x"}, "ftp"),
    ],
)
def test_what_the_generators_themselves_refuse(given, message):
    with pytest.raises(UsageError, match=message):
        make_generator(LlmConfig(**{"llm": "openai", "llm_model": "m", "no_journal": True} | given))


def test_dollars_by_a_list_without_prices_of_a_model(script, tmp_path):
    (tmp_path / "prices.yaml").write_text("compute_per_hour: 1.0\n")
    with pytest.raises(UsageError, match="has no price for the language model") as caught:
        scripted(script, max_dollars=1.0, prices=tmp_path / "prices.yaml", no_journal=True)
    assert caught.value.field == "max_dollars"


def test_a_user_without_a_home(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # as in a container whose user has no entry
    with pytest.raises(UsageError, match="set HOME, name a file with journal"):
        default_journal()


@pytest.mark.parametrize("any_model", [False, True])
def test_answers_of_a_model_by_another_name_are_taken_on_demand(any_model):
    with serve_badly() as server:
        server.alter = lambda answer: answer.update(model="other")
        generator = at_server(llm_model=MODEL, base_url=server.base_url, any_model=any_model)
        (answer,) = generator.generate(numbered_prompts(1), sampling=Sampling())
    assert (answer.error is None) == any_model
    assert any_model or "--any_model" in answer.error


def test_answers_of_any_model_are_none_of_the_named_one(tmp_path):
    """A journal gave what another model had answered under `--any_model` to who asks for this one and no other."""
    with serve_badly() as server:
        server.alter = lambda answer: answer.update(model="other")
        told = {"llm_model": MODEL, "base_url": server.base_url, "no_journal": False, "journal": tmp_path / "j"}
        ask = lambda any_model: at_server(**told, any_model=any_model).generate(  # noqa: E731
            numbered_prompts(1), sampling=Sampling()
        )[0]
        first, again, strict = ask(True), ask(True), ask(False)
    assert first.error is None and again.from_journal and again.text == first.text
    assert not strict.from_journal and "'other' answered" in str(strict.error)


@pytest.mark.parametrize(("concurrency", "size"), [(None, 64), (16, 64), (100, 400)])
def test_a_round_of_the_journal_keeps_all_calls_at_once_busy(tmp_path, concurrency, size):
    generator = at_server(concurrency=concurrency, no_journal=False, journal=tmp_path / "journal")
    assert generator.generator._claim_size == size


def test_a_key_of_openai_goes_over_https():
    generator = at_server(base_url="https://api.openai.com/v1")
    assert generator.model == "m at https://api.openai.com/v1"
