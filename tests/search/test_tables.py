"""Rows of tables are found with the head of their table, by the default search."""

import json

import pytest

from qrag_jax.cli.main import main
from qrag_jax.index.index import open_index
from qrag_jax.llm.scripted import ScriptedGenerator

HEAD = "| Berth | Summer fee | Winter fee | Power |"
ROWS = [f"| B{n} | {100 + n} | {50 + n} | {'no' if n % 3 else 'yes'} |" for n in range(1, 81)]


@pytest.fixture
def fees(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fees.md").write_text("\n".join(["# Fees\n", HEAD, "|---|---|---|---|", *ROWS, ""]))
    return "fees.md"


def test_a_row_is_shown_with_its_head(fees, capsys):
    assert main(["find", fees, "What is the winter fee of berth B61?", "--retriever", "bm25"]) == 0
    shown = capsys.readouterr().out
    assert f"    in: Fees {HEAD}\n" in shown


@pytest.mark.slow
def test_a_row_is_in_the_first_two_with_its_head(fees, capsys):
    assert main(["find", fees, "What is the winter fee of berth B61?", "--top_k", "2", "--json"]) == 0
    passages = json.loads(capsys.readouterr().out)["passages"]
    assert any(ROWS[60] in one["text"] and HEAD in one["context"] for one in passages)


def test_a_language_model_gets_the_head_within_the_budget(fees):
    prompts = []

    def answer(messages):
        prompts.append(messages[-1].content)
        return "111 [1]."

    asked = open_index([fees]).ask(
        "What is the winter fee of berth B61?", llm=ScriptedGenerator(answer), retriever="bm25"
    )
    inside = [one for one in asked.given if one.context]
    assert inside and all(f"\n{one.context}\n{one.text}\n" in prompts[0] for one in inside)
    assert asked.context.num_tokens <= asked.context.max_tokens
    assert all(one.context == f"Fees\n{HEAD}" for one in inside)
