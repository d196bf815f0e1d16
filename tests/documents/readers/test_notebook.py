import json

import pytest

from qrag_jax.documents.readers.notebook import read_notebook
from qrag_jax.types import InputError

PICTURE = "iVBORw0KGgo" * 50
CELLS = [
    {"cell_type": "markdown", "source": ["# Tide model\n", f"It uses M2. ![plot](data:image/png;base64,{PICTURE})"],
     "attachments": {"a.png": {"image/png": PICTURE}}},
    {"cell_type": "code", "source": ["x = tide(3)\n", "print(x)"], "outputs": [
        {"output_type": "stream", "name": "stdout", "text": ["3.2\n", "ok\n"]},
        {"output_type": "display_data", "data": {"image/png": PICTURE, "text/plain": ["<Figure>"]}},
        {"output_type": "execute_result", "data": {"text/markdown": "**high**", "text/plain": "high"}},
        {"output_type": "error", "traceback": ["\u001b[31mValueError\u001b[0m", "no tide"]},
    ]},
    {"cell_type": "code", "source": "'''```'''", "outputs": []},
    {"cell_type": "code", "source": "", "outputs": []},
    {"cell_type": "raw", "source": "raw text"},
]  # fmt: skip
BOOK = {"cells": CELLS, "metadata": {"kernelspec": {"language": "python"}}, "nbformat": 4}
TEXT = "# Tide model\nIt uses M2. ![plot]()"


def test_cells_are_read_in_order_and_outputs_counted():
    found = read_notebook(json.dumps(BOOK).encode())
    code = "```python\nx = tide(3)\nprint(x)\n```\n\n````python\n'''```'''\n````"
    assert found.text == f"{TEXT}\n\n{code}\n\nraw text"
    assert found.left_out == {"pictures": 2, "outputs": 4}


def test_outputs_are_read_on_demand_without_pictures():
    found = read_notebook(json.dumps(BOOK).encode(), outputs=True)
    printed = "```\n3.2\nok\n```\n\n```\n<Figure>\n```\n\n**high**\n\n```\nValueError\nno tide\n```"
    assert printed in found.text and PICTURE not in found.text
    assert found.left_out == {"pictures": 3}


def test_format_3_has_its_cells_in_work_sheets():
    cells = [
        {"cell_type": "heading", "level": 2, "source": "Tides"},
        {
            "cell_type": "code",
            "input": "x = 1",
            "language": "python",
            "outputs": [{"output_type": "pyout", "text": "1"}],
        },
    ]
    book = json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}).encode()
    assert read_notebook(book).text == "## Tides\n\n```\nx = 1\n```"
    assert read_notebook(book, outputs=True).text == "## Tides\n\n```\nx = 1\n```\n\n```\n1\n```"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "not a notebook"),
        (b"[1]", "without text in its cells"),
        (
            b'{"cells": [1, {"source": 3}, {"cell_type": "code", "outputs": [1, {"data": 3}]}]}',
            "without text in its cells",
        ),
        (b'{"cells": {"a": 1}, "metadata": []}', "without text in its cells"),
    ],
)
def test_what_is_no_notebook_is_refused(raw, message):
    for outputs in (False, True):
        with pytest.raises(InputError, match=message):
            read_notebook(raw, outputs=outputs)


def test_outputs_that_are_not_read_are_counted():
    data = [{"data": {"text/html": "<b>x</b>"}}, {"data": {"text/latex": "$a$"}}, {"ename": "KeyError", "evalue": "3"}]
    found = read_notebook(json.dumps({"cells": [{"cell_type": "code", "outputs": data}]}).encode(), outputs=True)
    assert (found.text, found.left_out) == ("```\n$a$\n```\n\n```\nKeyError: 3\n```", {"outputs": 1})
