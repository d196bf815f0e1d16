"""What an error says, as text and as fields; expectations by hand."""

import ast
import multiprocessing
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.syntax import syntax_tree

import qrag_jax
from qrag_jax.errors import Arg, InputError, InputWarning, UsageError, check_fields


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("a.txt:3: not a fact"), "a.txt:3: not a fact"),
        (InputError("empty", file="a.txt"), "a.txt: empty"),
        (InputError("not a fact", file="a.txt", line=3), "a.txt:3: not a fact"),
        (InputError("0 or more", field="top_k", value=-1), "top_k -1: 0 or more"),
        (InputError("unknown", field="encoding", value="utf9"), "encoding 'utf9': unknown"),
        (InputError("fits none", field="only", value=("a", "b/*")), "only 'a' 'b/*': fits none"),
        (InputError("gold must be a list", file="q", field="gold", value=3), "q: gold must be a list"),
        (InputError("gold[2] must be a text", field="gold", value=3), "gold[2] must be a text"),
        (InputError("outside", field="out", value=3), "out 3: outside"),
        (InputError("taken", file="x", remedy=("give another ", Arg("out"))), "x: taken; give another out"),
        (InputError("taken", remedy="(by a run)"), "taken (by a run)"),
        (InputError("taken", remedy=(": give ", Arg("out", "y"))), "taken: give out='y'"),
        (InputError("large", remedy=(Arg("max_gb", "N", "read_with(max_bytes=N)"),)), "large; read_with(max_bytes=N)"),
        (
            InputWarning("links", remedy=(Arg("follow_links", True), " follows them")),
            "links; follow_links=True follows them",
        ),
    ],
)
def test_text_by_hand(error: InputError, text: str) -> None:
    assert str(error) == text


def test_each_reader_sees_arguments_in_their_own_words() -> None:
    error = UsageError(
        "not embedded", file="i", field="retriever", value="dense", remedy=("give ", Arg("retriever", "bm25"))
    )

    def flag(arg: Arg) -> str:
        return f"--{arg.name}" if arg.value is None else f"--{arg.name} {arg.value}"

    assert error.text(flag) == "i: --retriever 'dense': not embedded; give --retriever bm25"
    assert error.text(flag, with_file=False) == "--retriever 'dense': not embedded; give --retriever bm25"


def test_at_names_the_file_and_leaves_the_error_as_it_was() -> None:
    error = UsageError("0 or more", line=2, field="top_k", value=-1)
    told = error.at("b.yaml")
    assert isinstance(told, UsageError) and (told.field, told.value) == ("top_k", -1)
    assert str(told) == "b.yaml:2: top_k -1: 0 or more"
    assert str(told.at("study.yaml")) == "study.yaml: b.yaml:2: top_k -1: 0 or more"
    assert error.file is None
    assert str(InputError("c: damaged").at("b")) == "b: c: damaged"


class Numbered(UsageError):
    """Takes more than the reason."""

    def __init__(self, reason: str, number: int):
        super().__init__(reason, file="a", line=number, field="f", value=(1, "x"), remedy=("give ", Arg("out")))
        self.number = number


def test_an_error_crosses_processes_with_its_fields() -> None:
    error = Numbered("bad", 3)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    sender.send(error)
    back = receiver.recv()
    assert type(back) is Numbered and vars(back) == vars(error) and str(back) == str(error)
    assert str(error.at("b")) == f"b: {error}"


# CSS, a model card (a page of commands), the answer of a server that a journal keeps, commands of other programs, help.
WITH_FLAGS = {
    "chunking/html_page.py",
    "eval/card.py",
    "llm/server/answers.py",
    "llm/thinking.py",
    "names.py",
    "models/gguf/file.py",
    "models/weights/packages.py",
}


def texts_of(tree: ast.AST) -> list[str]:
    """The texts of a module but its docstrings; what an f-string fills in is left out."""
    nodes = list(ast.walk(tree))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = [[one for one in node.values if isinstance(one, ast.Constant)] for node in joined]
    docs |= {id(one) for node in parts for one in node}
    plain = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docs]
    return ["".join(str(one.value) for one in node) for node in [*parts, *([one] for one in plain)]]


def test_no_library_message_names_a_flag():
    """A whole command may, in backticks: it is right for every reader, and copied."""
    package = Path(qrag_jax.__file__).parent
    for path in package.rglob("*.py"):
        name, source = path.relative_to(package).as_posix(), path.read_text("utf-8")
        if name.startswith("cli/") or name in WITH_FLAGS or not re.search("--[a-z]", source):
            continue
        for text in texts_of(syntax_tree(source)):
            outside = re.sub(r"`[^`]*`|^qrag index build --shard$", "", text)
            assert not re.search(r"(?<!\w)--[a-z]\w+", outside), f"{name}: {text!r}: name the argument by an Arg"


@dataclass(frozen=True)
class Bounded:
    size: int | None = 1
    shares: tuple[float, ...] = (0.0, 1.0)
    rates: Mapping[str, float] = field(default_factory=dict)
    scale: float = 1.0

    def __post_init__(self):
        within = {"rates": "(0, 1]", "scale": "[1, inf)"}
        check_fields(self, "b", positive=("size",), shares=("shares",), within=within)


@pytest.mark.parametrize("fields", [{"size": None}, {"shares": ()}, {"rates": {"a": 1e-9, "b": 1.0}}, {"scale": 1e9}])
def test_fields_at_their_bounds(fields):
    assert vars(Bounded(**fields)).items() >= fields.items()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "b.size 0: at least 1, or null"),
        ({"shares": (0.0, 1.1)}, "b.shares 0.0 1.1: must lie in [0, 1]"),
        ({"shares": (float("nan"),)}, "b.shares nan: must lie in [0, 1]"),
        ({"rates": {"a": 1.0, "b": 0.0}}, "b.rates {'a': 1.0, 'b': 0.0}: must lie in (0, 1]"),
        ({"scale": 0.5}, "b.scale 0.5: must lie in [1, inf)"),
        ({"scale": float("inf")}, "b.scale inf: must lie in [1, inf)"),
    ],
)
def test_fields_out_of_their_bounds(fields, message):
    with pytest.raises(UsageError) as caught:
        Bounded(**fields)
    name, value = next(iter(fields.items()))
    assert (str(caught.value), caught.value.field) == (message, f"b.{name}")
    assert caught.value.value is value
