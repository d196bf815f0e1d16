import argparse
import dataclasses
import os
import re
import shlex
import subprocess
import sys
import types
import warnings

import pytest
from support.tiers import PATIENCE

from qrag_jax import __version__
from qrag_jax.cli.main import main, parse
from qrag_jax.cli.parser import SUMMARIES, Parser, Verb, load_verb, read
from qrag_jax.files.reading import reading
from qrag_jax.types import InputError, UsageError

VERBS = list(SUMMARIES)


def parsed(argv):
    """What a command says, by destination, with its verb."""
    command = parse(argv)
    return argparse.Namespace(verb=command.verb, **command.values)


def parsers():
    """The parser of every verb, and of every kind of one."""
    for name in VERBS:
        verb = load_verb(name)
        yield Parser(f"qrag {name}", verb)
        yield from (Parser(f"qrag {name} {kind}", own) for kind, own in verb.kinds.items())


@pytest.fixture
def handler(monkeypatch):
    """Stands in for every verb's module; `handler.run` can be set by the test, `handler.args` is what it was given."""
    module = types.ModuleType("handler")

    def run(args):
        module.args = args
        return 0

    module.run = run

    def stood_in(verb):
        kinds = {name: stood_in(kind) for name, kind in verb.kinds.items()}
        return dataclasses.replace(verb, run=lambda args: module.run(args), kinds=kinds)

    monkeypatch.setattr("qrag_jax.cli.main.load_verb", lambda name: stood_in(load_verb(name)))
    return module


@pytest.mark.parametrize("override", ["learner.gamma=0.9", "--learner.gamma=0.9"])
def test_train_takes_overrides_with_and_without_dashes_anywhere(override):
    args = parsed(["train", override, "--config_path", "x.yaml", "--seed=3", "--out", "r", "name=a=b", "--dry_run"])
    assert args.overrides == ["learner.gamma=0.9", "seed=3", "name=a=b"]
    assert (args.config_path, args.out, args.dry_run, args.json) == ("x.yaml", "r", True, False)


def test_a_flag_of_train_is_not_taken_for_an_override():
    args = parsed(["train", "--out=r", "--config_path=x.yaml"])
    assert (args.out, args.config_path, args.overrides) == ("r", "x.yaml", [])


@pytest.mark.parametrize(
    "argv",
    [
        ["find", "RUN", "a.txt", "notes/", "Where is it?", "--num_steps", "3", "--json"],
        ["find", "--json", "--num_steps=3", "RUN", "a.txt", "notes/", "Where is it?"],
        ["find", "RUN", "a.txt", "notes/", "--num-steps", "3", "--json", "Where is it?"],
    ],
)
def test_the_last_text_of_find_is_the_question(argv):
    args = parsed(argv)
    assert (args.paths, args.question) == (["RUN", "a.txt", "notes/"], "Where is it?")
    assert (args.num_steps, args.json) == (3, True)


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["chunk", "--json", "--", "-dash.md", "--html"], "paths", ["-dash.md", "--html"]),
        (["chunk", "--", "-"], "paths", ["-"]),
        (["chunk", "a.md", "--", "b.md"], "paths", ["a.md", "b.md"]),
        (["find", "run", "--", "-dash.md", "-w-?"], "paths", ["run", "-dash.md"]),
        (["ask", "--", "-dash.md", "-w-?"], "question", "-w-?"),
        (["export", "run", "--", "--out"], "folder", "--out"),
        (["push", "--", "-run", "./there"], "run", "-run"),
        (["pull", "--", "./there", "-out"], "out", "-out"),
        (["train", "--", "seed=3"], "overrides", ["seed=3"]),
        (["study", "--", "-c.yaml"], "overrides", ["-c.yaml"]),
    ],
)
def test_behind_two_dashes_nothing_is_a_flag(argv, name, value):
    assert getattr(parsed(argv), name) == value


@pytest.mark.parametrize("verb", ["find", "ask"])
def test_a_question_that_is_a_path_is_none(verb, tmp_path, capsys):
    (tmp_path / "b.md").write_text("text")
    argv = [verb, *(["run"] if verb == "find" else []), "a.md"]
    with pytest.raises(SystemExit) as caught:
        parsed([*argv, str(tmp_path / "b.md")])
    assert caught.value.code == 2
    assert "b.md' is a file or folder, but the last argument must be the question" in capsys.readouterr().err
    assert parsed([*argv, "b.md?"]).question == "b.md?"
    assert parsed([*argv, "x" * 100_000]).question == "x" * 100_000


@pytest.mark.parametrize("verb", [verb for verb in VERBS if not load_verb(verb).kinds])
def test_a_misspelt_flag_of_any_verb_is_told_what_was_meant(verb, capsys):
    parser = Parser(f"qrag {verb}", load_verb(verb))
    flags = [flag for action in parser._actions for flag in action.option_strings]
    for flag in (flag for flag in flags if len(flag) > 6):
        with pytest.raises(SystemExit) as caught:
            parsed([verb, flag[:-2] + flag[-1]])
        assert caught.value.code == 2
        message = capsys.readouterr().err
        assert f"unrecognized arguments: {flag[:-2] + flag[-1]} (did you mean {flag}" in message or " or " in message


def test_a_flag_that_is_like_no_other_is_only_refused(capsys):
    with pytest.raises(SystemExit):
        parsed(["chunk", "a.md", "--zzzzzz"])
    assert "unrecognized arguments: --zzzzzz\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            [],
            "give a verb: find, ask, serve, mcp, index, chunk, boundaries, hicbench, study, demo, train, learn, eval, "
            "notes",
        ),
        (["fnd"], "invalid choice: 'fnd'"),
        (["demo", "--seeds=3"], "unrecognized arguments: --seeds=3"),
        (["demo", "--seed", "-1"], "is not an integer of at least 0"),
        (["train", "--learner.gamma", "0.9"], "unrecognized arguments: --learner.gamma"),
        (
            ["eval", "RUN", "--hotpot", "a", "--protocol", "fixd"],
            "'fixd' is not a protocol; choose from fixed, threshold",
        ),
        (
            ["eval", "RUN", "--hotpot", "a", "--protocol", "fixed,fixed"],
            "'fixed,fixed' contains 'fixed' twice",
        ),
        (["eval", "RUN", "--babi", "a", "--num_chunks", "50,x"], "'x' is not an integer of at least 1"),
        (["eval", "RUN", "--babi", "a", "--methods", "bm52"], "'bm52' is not a method; choose from trained, untrained"),
        (["find", "question"], "give at least one file or folder, then the question"),
        (["ask", "a.txt", "q", "--temperature", "nan"], "'nan' is not a number of at least 0"),
        (["ask", "a.txt", "q", "--deadline", "0"], "'0' is not a number of seconds above 0"),
        (["fit"], "give the kind first: qrag train retriever|tagger|compressor|reranker|sft|grpo|stitch|router"),
        (["fit", "taggr", "notes"], "give the kind first: qrag train retriever"),
        (["fit", "--seed", "1", "tagger", "notes", "--out", "run"], "give the kind first: qrag train retriever"),
    ],
)
def test_wrong_usage_exits_2_with_a_reason(argv, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"qrag_jax {__version__}\n"


def test_every_flag_is_explained():
    for parser in parsers():
        assert len(parser.verb.description.splitlines()) <= 15
        assert all(action.help for action in parser._actions)
        shown, whole = parser.format_help(), parser.format_help_all()
        for action in parser._actions:
            names = [name for name in action.option_strings if name.startswith("--")]
            assert all(name in whole for name in names)
            assert action not in parser.rare or not any(f"  {name} " in shown for name in names)


def test_an_older_name_of_a_flag_is_taken_and_said(capsys):
    verb = Verb("does it", "  qrag do", "--new M  a number", lambda args: 0, renamed={"--old": "--new"})
    for argv in (["--old", "3"], ["--old=3"], ["--new=3"]):
        assert read(argv, "qrag do", verb)[1] == {"new": "3"}
    assert capsys.readouterr().err == 2 * "note: --old is now called --new\n"
    with pytest.raises(SystemExit):
        read(["--old", "3", "--new", "4"], "qrag do", verb)
    assert "given twice; --old is its old name" in capsys.readouterr().err


def test_an_older_name_of_a_verb_is_taken_and_said(capsys):
    words = ["tagger", "notes", "--out", "run", "--view", "plain"]
    assert vars(parsed(["fit", *words])) == vars(parsed(["train", *words]))
    assert capsys.readouterr().err == "note: qrag fit is now called qrag train\n"


def test_the_help_of_every_verb_is_short(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = {parser.prog: len(parser.format_help().splitlines()) for parser in parsers()}
    assert {prog: number for prog, number in shown.items() if number > 60} == {}
    assert [parser.prog for parser in parsers() if len(parser.verb.description.splitlines()) > 15] == []


def test_the_help_begins_with_what_the_verb_does():
    for parser in parsers():
        for text in (parser.format_help(), parser.format_help_all()):
            first, blank, usage, *_ = text.splitlines()
            assert first.endswith(".") and not blank and usage.startswith(f"usage: {parser.prog} ")


def test_the_examples_of_the_help_parse():
    whole = [re.sub(r"\\\n\s*", "", parser.verb.examples) for parser in parsers()]  # a long one has two lines
    lines = [line for text in whole for line in text.splitlines() if line.startswith("  qrag ")]
    assert len(lines) >= 2 * len(VERBS)
    for line in lines:
        command, *_ = re.split(r"   | > ", line.strip())  # a comment stands after blanks
        assert parsed(shlex.split(command)[1:]).verb in VERBS


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (InputError("a.txt:3: not a fact"), 1, "qrag: error: a.txt:3: not a fact\n"),
        (UsageError("no such folder: RUN"), 2, "qrag: error: no such folder: RUN\n"),
        (
            PermissionError(13, "Permission denied", "x.json"),
            1,
            "qrag: error: [Errno 13] Permission denied: 'x.json'\n",
        ),
        (KeyboardInterrupt(), 130, "qrag: stopped\n"),
    ],
)
def test_errors_become_exit_codes(handler, capsys, raised, code, message):
    def run(args):
        raise raised

    handler.run = run
    assert main(["export", "RUN", "DIR"]) == code
    captured = capsys.readouterr()
    assert captured.err == message
    assert captured.out == ""


def test_what_a_terminal_would_obey_is_not_printed(handler, capsys):
    def run(args):
        sys.stderr.write(warnings.formatwarning("no \x1b[2J", UserWarning, "a.py", 1))  # pytest takes warnings away
        raise InputError("a\x1b[31m.txt:3: no fact\non two lines")

    handler.run = run
    assert main(["export", "RUN", "DIR"]) == 1
    err = capsys.readouterr().err
    assert err == "qrag: warning: no \ufffd[2J\nqrag: error: a\ufffd[31m.txt:3: no fact\non two lines\n"


def test_links_are_followed_where_the_flag_says_so(handler):
    seen = []
    handler.run = lambda args: seen.append(reading().follow_links) or 0
    commands = (["find", "RUN", "notes", "Where?"], ["ask", "notes", "Where?"], ["chunk", "notes"], ["study", "c.yaml"])
    for argv in (*commands, ["train"], ["demo"], ["eval", "RUN", "--babi", "x"], ["push", "RUN", "x/y"]):
        main(argv)
        main([*argv, *["--follow_links"] * (argv[0] != "push")])
    assert seen == [False, True] * 7 + [False, False]
    assert not reading().follow_links


def test_the_limit_of_inputs_is_the_flags(handler, capsys):
    seen = []
    handler.run = lambda args: seen.append(reading().max_bytes) or 0
    main(["chunk", "notes", "--max_input_gb", "0.5"])
    main(["chunk", "notes"])
    assert seen == [2**29, 4 * 2**30]
    with pytest.raises(SystemExit):
        main(["chunk", "notes", "--max_input_gb", "0"])
    assert "'0' is not a number above 0" in capsys.readouterr().err


def test_what_is_compiled_is_kept_by_the_verbs_that_compile(handler, monkeypatch):
    kept = []
    monkeypatch.setattr("qrag_jax.cli.main.keep_compiled", lambda: kept.append(1))
    commands = (["find", "notes", "Where?"], ["ask", "notes", "Where?"], ["study", "c.yaml"], ["train"], ["demo"],
                ["eval", "RUN", "--babi", "x"])  # fmt: skip
    for number, argv in enumerate(commands, 1):
        main(argv)
        assert len(kept) == number
        main([*argv, "--no_compile_cache"])
        assert len(kept) == number
    for argv in (["train", "--distributed"], ["train", "--coordinator", "a:1"], ["chunk", "notes"]):
        main(argv)
    assert len(kept) == len(commands)


def test_a_bug_keeps_its_traceback(handler):
    def run(args):
        raise KeyError("bug")

    handler.run = run
    with pytest.raises(KeyError, match="bug"):
        main(["demo"])


def test_the_exit_code_is_the_handlers(handler):
    handler.run = lambda args: 7
    assert main(["demo"]) == 7


def test_a_closed_pipe_is_no_error():
    code = """
import sys, types
def run(args):
    for _ in range(100_000):
        print("a line of output")
    return 0
from dataclasses import replace
from qrag_jax.cli import main
load = main.load_verb
main.load_verb = lambda name: replace(load(name), run=run)
sys.exit(main.main(["demo"]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"a line of output\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 141


STREAMS = """
import sys, types
from qrag_jax.cli.terminal import say, write_json
def run(args):
    say("caf\u00e9")
    print("caf\u00e9 \u6771")
    write_json("\u6771 \U0001f600")
    return 0
from dataclasses import replace
from qrag_jax.cli import main
load = main.load_verb
main.load_verb = lambda name: replace(load(name), run=run)
sys.exit(main.main(["demo"]))
"""


def run_in_shell(redirection, **environment):
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(STREAMS)} {redirection}"
    return subprocess.run(command, shell=True, capture_output=True, env={**os.environ, **environment}, check=False)


def test_letters_that_standard_output_does_not_have_are_escaped():
    done = run_in_shell("", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"caf\\xe9\n")
    assert done.stdout == b'caf\\xe9 \\u6771\n"\\u6771 \\ud83d\\ude00"\n'


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_stream_that_is_closed_leads_nowhere(closed):
    done = run_in_shell(closed, PYTHONIOENCODING="utf-8")
    assert done.returncode == 0
    assert done.stdout == (b"" if closed == ">&-" else 'caf\u00e9 \u6771\n"\u6771 \U0001f600"\n'.encode())
    assert done.stderr == (b"" if closed == "2>&-" else "caf\u00e9\n".encode())


@pytest.mark.parametrize("flag", ["--journal", "--prompts", "--llm_model", "--base_url", "--key_name", "--prices"])
def test_an_empty_value_is_no_choice(flag, capsys):
    for value in ("", " "):
        with pytest.raises(SystemExit) as caught:
            parsed(["ask", "a.txt", "q", flag, value])
        assert caught.value.code == 2 and f"{flag}: is empty: leave the flag out" in capsys.readouterr().err


def test_a_zero_byte_is_refused(capsys):
    assert main(["chunk", "n\0ul"]) == 2
    assert capsys.readouterr().err == "qrag: error: 'n\\x00ul': contains a zero byte; remove it\n"


def test_names_and_words_are_read_and_written_as_utf8_in_the_c_locale(tmp_path):
    (tmp_path / "Größe.md").write_text("Die Mühle öffnet um acht – 水車.", encoding="utf-8")
    command = "import sys; from qrag_jax.cli.main import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", command, "find", "Größe.md", "Mühle", "--retriever", "bm25"],
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.decode() == " 1  Größe.md:1\n    Die Mühle öffnet um acht – 水車.\n"
