import stat
import sys
import types
from pathlib import Path

import pytest
from bad_server import MODEL, numbered_prompts, serve_badly

from qrag_jax.cli.generators import default_journal, make_generator, prices_of, prompts_folder, sampling_of, spent
from qrag_jax.cli.main import parse
from qrag_jax.llm.prices import Prices
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


def flags(*argv):
    return parse(["ask", "a.txt", "q", *argv])


def scripted(script, *argv):
    return make_generator(flags("--llm", "scripted", "--llm_model", script, *argv))


def test_scripted_without_a_journal(script):
    generator = scripted(script, "--no_journal")
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
    assert not scripted(script, "--no_journal").generate([ASK], sampling=Sampling())[0].from_journal


def test_a_relative_cache_folder_is_ignored_as_the_standard_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert default_journal() == tmp_path / ".cache" / "qrag_jax" / "journal.sqlite"


def test_a_cache_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="the journal's folder cannot be made .*--no_journal"):
        default_journal()


def test_a_journal_by_its_path(script, tmp_path):
    path = str(tmp_path / "mine.sqlite")
    for from_journal in (False, True):
        (answer,) = scripted(script, "--journal", path).generate([ASK], sampling=Sampling())
        assert answer.from_journal == from_journal
    (tmp_path / "damaged").write_text("this is no journal" * 100)
    with pytest.raises(InputError, match="damaged.*--journal names another file, --no_journal keeps no answers"):
        scripted(script, "--journal", str(tmp_path / "damaged"))


def test_a_budget_stops_and_what_is_in_the_journal_costs_none_of_it(script, tmp_path):
    journal = ("--journal", str(tmp_path / "journal"))
    scripted(script, *journal).generate([ASK], sampling=Sampling(max_tokens=9))
    poor = scripted(script, "--max_llm_tokens", "1", *journal)
    known, new = poor.generate([ASK, (Message("user", "another key"),)], sampling=Sampling(max_tokens=9))
    assert known.from_journal and known.error is None
    assert new.error is not None and new.error.startswith("budget of 1 tokens")


def test_a_budget_of_dollars(script, tmp_path):
    (tmp_path / "prices.yaml").write_text(PRICES)
    argv = ("--no_journal", "--prices", str(tmp_path / "prices.yaml"), "--max_dollars")
    (answer,) = scripted(script, *argv, "1").generate([ASK], sampling=Sampling())
    assert answer.error is None
    (answer,) = scripted(script, *argv, "0").generate([ASK], sampling=Sampling())
    assert answer.error is not None and answer.error.startswith("budget of 0 dollars")


@pytest.mark.parametrize(
    ("argv", "source", "storage"),
    [([], "smollm2", None), (["--llm_model", "my.gguf", "--storage", "int8"], "my.gguf", "int8")],
)
def test_local_tells_its_window_and_counts(monkeypatch, argv, source, storage):
    """A stand-in for the module, so that no weights are needed."""

    class LocalGenerator(ScriptedGenerator):
        window = 99

        def __init__(self, source, storage):
            super().__init__(["yes"], model=f"{source} {storage}")

        def count_tokens(self, text):
            return len(text)

    module = types.ModuleType("local")
    module.LocalGenerator = LocalGenerator
    monkeypatch.setitem(sys.modules, "qrag_jax.llm.local", module)
    generator = make_generator(flags("--no_journal", *argv))
    assert (generator.model, generator.window) == (f"{source} {storage}", 99)
    assert generator.count is not None and generator.count("four") == 4


def test_openai_asks_nobody_before_it_is_asked(tmp_path):
    argv = (
        "--llm openai --llm_model m --base_url http://127.0.0.1:9/v1 --deadline 5 --concurrency 2 --no_journal".split()
    )
    generator = make_generator(flags(*argv))
    assert "m" in generator.model and (generator.window, generator.count) == (None, None)
    assert not generator.takes_grammar(Choice(("a",)))
    told = make_generator(flags(*argv, "--grammar_field", "guided"))
    assert told.takes_grammar(Choice(("a",)))


@pytest.mark.parametrize(
    ("url", "extra", "name"),
    [
        ("https://api.openai.com/v1", [], "OPENAI_API_KEY"),
        ("https://eu.api.openai.com/v1", [], "OPENAI_API_KEY"),
        ("https://models.example/v1", [], "QRAG_API_KEY"),
        ("https://api.openai.com.example/v1", [], "QRAG_API_KEY"),
        ("https://models.example/v1", ["--key_name", "OPENAI_API_KEY"], "OPENAI_API_KEY"),
    ],
)
def test_an_openai_key_goes_to_openai_alone_unless_it_is_named(url, extra, name):
    argv = ["--llm", "openai", "--llm_model", "m", "--base_url", url, "--no_journal", *extra]
    assert f"key_name={name!r}" in repr(make_generator(flags(*argv)).generator)


def test_a_key_is_in_no_representation(monkeypatch):
    monkeypatch.setenv("CANARY_NAME", "sk-canary-value")
    argv = "--llm openai --llm_model m --base_url http://127.0.0.1:9/v1 --key_name CANARY_NAME --no_journal".split()
    generator = make_generator(flags(*argv))
    assert "sk-canary-value" not in repr(generator) + generator.model + repr(vars(generator.generator))


def test_what_calls_cost():
    generations = [
        Generation("a", "stop", 100, 10),
        Generation("b", "stop", 1000, 500, from_journal=True),
        Generation("", "error", 20, 0, error="timed out after it was paid"),
    ]
    cost = spent(generations)
    assert (cost.prompt_tokens, cost.completion_tokens, cost.dollars) == (120, 10, None)
    prices = Prices(prompt_per_million_tokens=2.0, completion_per_million_tokens=10.0)
    assert spent(generations, prices).dollars == pytest.approx((120 * 2 + 10 * 10) / 1e6)
    assert spent([], prices).dollars == 0.0


def test_sampling_prices_and_prompts(tmp_path):
    (tmp_path / "prices.yaml").write_text(PRICES)
    args = flags("--max_answer_tokens", "7", "--temperature", "0.5", "--prices", str(tmp_path / "prices.yaml"))
    assert sampling_of(args) == Sampling(max_tokens=7, temperature=0.5)
    prices = prices_of(args)
    assert prices is not None and prices.completion_per_million_tokens == 10
    assert prompts_folder(args) is None and prompts_folder(flags("--prompts", "mine")) == Path("mine")
    assert prices_of(flags()) is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--llm openai --llm_model m", "--llm openai: name the server with --base_url"),
        ("--llm openai --base_url http://127.0.0.1:1/v1", "give the name of the model on the server with --llm_model"),
        ("--llm scripted", "--llm scripted: give a JSONL file of answers with --llm_model"),
        ("--base_url http://127.0.0.1:1/v1", "--base_url: belongs to --llm openai, not to --llm local"),
        ("--llm scripted --llm_model x --deadline 3", "--deadline: belongs to --llm openai, not to --llm scripted"),
        ("--llm scripted --llm_model nowhere.jsonl", "nowhere.jsonl: no such file"),
        ("--llm scripted --llm_model x --any_model", "--any_model: belongs to --llm openai, not to --llm scripted"),
        ("--llm openai --llm_model m --storage file", "--storage: belongs to --llm local, not to --llm openai"),
        ("--llm scripted --llm_model x --storage int8", "--storage: belongs to --llm local, not to --llm scripted"),
        ("--grammar_field guided", "--grammar_field: belongs to --llm openai, not to --llm local"),
        (
            "--llm openai --llm_model m --base_url http://127.0.0.1:1/v1 --key_name sk-live-1",
            "key_name: no name of an environment variable",
        ),
        ("--max_dollars 1", "--max_dollars: give the prices of the model with --prices FILE"),
        ("--llm openai --llm_model m --base_url ftp://x", "ftp"),
    ],
)
def test_flags_that_do_not_go_together(argv, message):
    with pytest.raises(UsageError, match=message):
        make_generator(flags(*argv.split()))


def test_dollars_by_a_list_without_prices_of_a_model(script, tmp_path):
    (tmp_path / "prices.yaml").write_text("compute_per_hour: 1.0\n")
    with pytest.raises(UsageError, match="gives the language model no price, so nothing would ever count"):
        scripted(script, "--max_dollars", "1", "--prices", str(tmp_path / "prices.yaml"), "--no_journal")


def test_a_user_without_a_home(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # as in a container whose user has no entry
    with pytest.raises(UsageError, match="set HOME, name a file with --journal"):
        default_journal()


@pytest.mark.parametrize("any_model", [False, True])
def test_answers_of_a_model_by_another_name_are_taken_on_demand(any_model):
    with serve_badly() as server:
        server.alter = lambda answer: answer.update(model="other")
        argv = ["--llm", "openai", "--llm_model", MODEL, "--base_url", server.base_url, "--no_journal"]
        generator = make_generator(flags(*argv, *["--any_model"] * any_model))
        (answer,) = generator.generate(numbered_prompts(1), sampling=Sampling())
    assert (answer.error is None) == any_model
    assert any_model or "--any_model" in answer.error


def test_answers_of_any_model_are_none_of_the_named_one(tmp_path):
    """A journal gave what another model had answered under `--any_model` to who asks for this one and no other."""
    with serve_badly() as server:
        server.alter = lambda answer: answer.update(model="other")
        argv = [
            "--llm",
            "openai",
            "--llm_model",
            MODEL,
            "--base_url",
            server.base_url,
            "--journal",
            str(tmp_path / "j"),
        ]
        ask = lambda *more: make_generator(flags(*argv, *more)).generate(numbered_prompts(1), sampling=Sampling())[0]  # noqa: E731
        first, again, strict = ask("--any_model"), ask("--any_model"), ask()
    assert first.error is None and again.from_journal and again.text == first.text
    assert not strict.from_journal and "answered by 'other'" in str(strict.error)


@pytest.mark.parametrize(("argv", "size"), [([], 64), (["--concurrency", "16"], 64), (["--concurrency", "100"], 400)])
def test_a_round_of_the_journal_keeps_all_calls_at_once_busy(tmp_path, argv, size):
    server = ["--llm", "openai", "--llm_model", "m", "--base_url", "http://127.0.0.1:1/v1"]
    generator = make_generator(flags(*server, *argv, "--journal", str(tmp_path / "journal")))
    assert generator.generator._claim_size == size


def test_the_key_of_openai_is_never_sent_in_clear_text():
    argv = ["--llm", "openai", "--llm_model", "m", "--no_journal", "--base_url"]
    with pytest.raises(
        UsageError, match="--base_url http://api.openai.com/v1: would send the key in clear text: write"
    ):
        make_generator(flags(*argv, "http://api.openai.com/v1"))
    make_generator(flags(*argv, "https://api.openai.com/v1"))
