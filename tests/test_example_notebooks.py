"""The notebooks of `examples/notebooks` run from a clone, and what they show is what their cells gave.

Outputs are written anew where jupyter, nbconvert and ipywidgets are installed beside qrag_jax:
`jupyter nbconvert --to notebook --execute --inplace examples/notebooks/*.ipynb`
"""

import ast
import json
import shutil
from pathlib import Path

import pytest
from support.compiling import give_back

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
# Training repeats what tests of tests/train do.
TIER = {"search_your_documents": pytest.mark.slow, "train_a_retriever": pytest.mark.full}
# In place of two minutes of training, whose output is then another.
SHRUNK = {"num_updates=300": "num_updates=2", "num_questions=2000": "num_questions=64", "=200)": "=4)"}


def cells(notebook: Path) -> list[dict]:
    return [one for one in json.loads(notebook.read_text("utf-8"))["cells"] if one["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_every_cell_has_its_output_and_none_is_an_error(notebook):
    assert [cell["execution_count"] for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))
    outputs = [output for cell in cells(notebook) for output in cell["outputs"]]
    assert outputs and {output["output_type"] for output in outputs} <= {"stream", "execute_result"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}


@pytest.mark.parametrize("notebook", [pytest.param(one, marks=TIER[one.stem], id=one.stem) for one in NOTEBOOKS])
def test_notebook_runs(notebook, tmp_path, monkeypatch, capsys):
    """As in Jupyter, without its processes: cells in order, and a last expression is displayed."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path / "examples/notebooks")
    names: dict = {"__name__": "notebook"}
    is_shrunk = False
    for cell in cells(notebook):
        source = given = "".join(cell["source"])
        for long, short in SHRUNK.items():
            source = source.replace(long, short)
        is_shrunk |= source != given
        _run(source, names)
        stored = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        assert is_shrunk or capsys.readouterr().out == stored
    give_back()


def _run(source: str, names: dict) -> None:
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        value = eval(compile(last, "cell", "eval"), names)
        assert value is None or getattr(value, "_repr_html_", value.__repr__)()
