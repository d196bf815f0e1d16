"""Arguments that errors name, as the flags of the verb that ran."""

import argparse
import sys
import warnings
from dataclasses import replace

import pytest

from qrag_jax.cli.errors import cli_text, flags_of
from qrag_jax.cli.main import main
from qrag_jax.cli.parser import load_verb
from qrag_jax.errors import Arg, InputWarning, UsageError

PARSER = argparse.ArgumentParser()
PARSER.add_argument("-r", "--retriever")
PARSER.add_argument("--protocol")
PARSER.add_argument("--strict", action="store_true")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("none", field="retriever", value="x"), "--retriever 'x': none"),
        (UsageError("none", remedy=("give ", Arg("retriever", "bm25"))), "none; give --retriever bm25"),
        (UsageError("untrained", field="protocols"), "--protocol: untrained"),
        (UsageError((Arg("protocols"), " needs a run"), field="protocols"), "--protocol needs a run"),
        (UsageError("0 or more", field="learner.gamma", value=-1), "learner.gamma -1: 0 or more"),
        (InputWarning("left out", remedy=(Arg("strict", True), " refuses such")), "left out; --strict refuses such"),
        (InputWarning("none", remedy=(Arg("top_k", 3),)), "none; top_k=3"),
        (OSError("disk full"), "disk full"),
    ],
)  # fmt: skip
def test_text_by_hand(error: Exception, text: str) -> None:
    assert cli_text(error, flags_of(PARSER)) == text


def test_a_verb_fails_and_warns_in_its_own_flags(monkeypatch, capsys):
    def run(args):
        warning = InputWarning("left out", remedy=(Arg("out"),))
        sys.stderr.write(warnings.formatwarning(warning, InputWarning, "main.py", 1))
        raise UsageError("0 or more", field="seed", value=-1)

    monkeypatch.setattr("qrag_jax.cli.main.load_verb", lambda name: replace(load_verb(name), run=run))
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == "qrag: warning: left out; --out\nqrag: error: --seed -1: 0 or more\n"
