"""Every line of the README and the documents that a reader may type: parsed here, and run as it stands in a folder that
has the files which it names. Only sizes are changed (`SHRUNK`), so that a line takes seconds."""

import contextlib
import fcntl
import glob
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.beir_folders import make_rows, write_beir
from support.compiling import give_back
from support.documents import tiny_pdf

from qrag_jax.cli.main import main, parse

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], key=lambda page: page.name)
PACKAGES = (
    "documents",
    "chunking",
    "data",
    "models",
    "llm",
    "annotate",
    "search",
    "qrag",
    "index",
    "train",
    "eval",
    "service",
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
# What is added to a line of a verb when it is run: the same path through the program, with less of everything.
SHRUNK = {
    "train": [
        "num_updates=2",
        "save_every=2",
        "data.batch_size=8",
        "log_every=1",
        "model.latent.num_layers=1",
        "env.num_steps=1",
    ],
    "train tagger": [],
    "ask": ["--max_answer_tokens", "4", "--max_context_tokens", "300", "--journal", "journal.sqlite"],
    "study": ["window=72"],
}
PYTHON_SHRUNK = {
    "num_updates=500": "num_updates=2",
    "data.num_questions=2000": "data.num_questions=64",
    "data.max_haystack_sentences=500": "data.max_haystack_sentences=40",
    "max_tokens=100": "max_tokens=4",
    "QuestionsConfig(num_questions=2)": "QuestionsConfig(num_questions=1, most_relevant=1, max_answer_tokens=8)",
    'load_study_encoder("minilm")': 'load_study_encoder("minilm", 64)',
}
CORPUS_MODE, LEARN = "tests/cli/test_corpus_mode.py", "tests/cli/test_learn.py"
# Lines that another test runs in full, or that need what no test has; each with who does.
ELSEWHERE = {
    "qrag eval runs/mine --hotpot hotpot_dev.json --pooled --k 2,4,10 --json pooled.json": CORPUS_MODE,
    "qrag eval runs/mine --hotpot hotpot_dev.json --pooled --distractors passages.json --methods trained": CORPUS_MODE,
    "qrag eval runs/mine --corpus notes.index --jsonl q.jsonl": CORPUS_MODE,
    "qrag eval runs/mine --ruler niah,vt --num_tokens 4096,32768 --num_questions 100 --seed 1 --json ruler.json": (
        "tests/cli/test_ruler.py"
    ),
    "qrag eval runs/mine --ruler qa_1:articles.jsonl,qa_2:hotpot_dev.json --num_tokens 4096 --json ruler_qa.json": (
        "tests/cli/test_ruler.py"
    ),
    "qrag find runs/mine notes.index 'Where was the director of Red River born?'": CORPUS_MODE,
    "qrag eval RUN --babi qa3_valid.txt --haystack NOVELS --num_chunks 400000 --num_questions 100 "
    "--protocol stop,oracle": "tests/eval/retrieval/test_long_contexts.py",
    "qrag train --config_path configs/qrag/corpus_latent.yaml --out runs/mine data.corpus=notes.index "
    "'data.paths=[q.jsonl]'": CORPUS_MODE,
    "qrag demo --smoke": "tests/cli/test_demo.py",
    "qrag learn notes/ --out runs/notes": LEARN,
    "qrag train --config_path configs/qrag/answers_latent.yaml --out runs/answers data.task=jsonl "
    "'data.paths=[answered.jsonl]'": "tests/cli/test_train_answers.py",
    "qrag index build docs.index docs": LEARN,
    "qrag learn docs.index --out runs/docs --show 6": LEARN,
    "qrag find runs/docs docs.index 'Which command makes an index of a folder and how is it kept up to date?'": LEARN,
    "qrag eval runs/docs --corpus docs.index --jsonl q.jsonl --k 1,2,4": LEARN,
    "qrag train reranker runs/docs/pairs.jsonl --out runs/reranker": LEARN,
    "qrag train stitch configs/planner/controlled.yaml --out runs/stitch seed=0": "tests/train/decoder/test_run.py",
    "qrag study configs/study/paper.yaml data=DATA --out runs/paper": "45 minutes",
    "qrag train --config_path run.yaml --out runs/rl init=runs/big/step_300": "tests/train/test_warm_start.py",
    "qrag ask book.txt 'Who has the map?' --llm openai --base_url http://127.0.0.1:8080/v1 --llm_model NAME --json": (
        "tests/cli/test_ask.py, with a server"
    ),
    "qrag ask notes/ 'Who has the key?' --llm openai --base_url http://127.0.0.1:8080/v1 --llm_model model.gguf": (
        "tests/cli/test_ask.py, with a server"
    ),
    "qrag index build big.index notes/ --store milvus --uri http://127.0.0.1:19530": (
        "tests/index/stores/test_stores.py, with a server"
    ),
    "qrag find big.index 'Who has the key?'": "tests/index/stores/test_stores.py, with a server",
    "qrag index add big.index letters/": "tests/index/stores/test_stores.py, with a server",
    "qrag index build big.index library/ --engine ray": "tests/index/test_ray_tasks.py, with a cluster",
    "qrag index build big.index library/ --engine ray --workers 64": "tests/index/test_ray_tasks.py, with a cluster",
    "qrag mcp station.index": "tests/serve/test_mcp.py, with an agent's client",
    "qrag mcp notes.index": "tests/serve/test_mcp.py, with an agent's client",
    "qrag find notes.index 'Who has the key to the garden?' --trace http://127.0.0.1:4318": (
        "tests/integrations/test_otel.py, with a collector"
    ),
    "qrag mcp notes.index --trace http://127.0.0.1:4318 --trace_content": "tests/integrations/test_otel.py",
    "qrag hicbench build examples/station --llm_model qwen.gguf --out bench/": (
        "tests/cli/test_hicbench.py, with a script"
    ),
    "qrag serve station.index --port 8000": "tests/cli/test_serve.py, with a client",
    "qrag serve station.index --llm openai --base_url http://127.0.0.1:8080/v1 --llm_model NAME": (
        "tests/serve/test_http.py, with a model"
    ),
    "qrag serve station.index --host 0.0.0.0 --token a-long-secret": "tests/cli/test_serve.py",
    "qrag study CONFIG.yaml data=DATA --budgets 500,1000,2000 --fill plain,widen,merge": (
        "tests/eval/study/test_budgets.py"
    ),
}


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def commands(page: Path) -> list[str]:
    """Lines of `qrag` in the page's plain blocks, without their comments; a backslash joins a line to the next."""
    joined = [block.replace("\\\n", " ") for block in blocks(page, "")]
    lines = [line for block in joined for line in block.splitlines() if line.startswith("qrag ")]
    return [" ".join(map(shlex.quote, shlex.split(line, comments=True))) for line in lines]


TYPED = [pytest.param(page, line, id=f"{page.stem}: {line[:60]}") for page in PAGES for line in commands(page)]


@pytest.mark.parametrize("page, line", TYPED)
def test_every_command_of_the_documents_is_one(page, line):
    words = shlex.split(line)
    assert parse(words[1:]).verb == words[1]


@pytest.fixture(scope="module")
def small_models(tmp_path_factory):
    """Two layers of MiniLM in its place; SmolLM2 is read once, which takes longer than the few words it says here."""
    from support.encoders import small_minilm

    from qrag_jax.models.decoder.weights import load_decoder

    with small_minilm(tmp_path_factory.mktemp("minilm")), pytest.MonkeyPatch.context() as patch:
        once = cache(load_decoder)
        for place in ("qrag_jax.models.load_decoder", "qrag_jax.llm.local.load_decoder"):
            patch.setattr(place, lambda source, **settings: once(source))  # pages leave its settings as they are
        yield


@pytest.fixture
def desk(tmp_path, monkeypatch, small_models):
    """A folder with all the files that the documents name, as the working folder."""
    monkeypatch.chdir(tmp_path)
    _write_desk()
    yield tmp_path
    give_back()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_models):
    """Trains a run that pages go on with, once for all of them and for both workers: name -> folder."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def run_of(name):
        folder = shared / f"trained-{Path(name).name}"
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / name).is_dir():
                folder.mkdir()
                with contextlib.chdir(folder):
                    _write_desk()
                    assert _run(GIVEN[name]) == 0
        return folder / name

    return run_of


def pages_with_own_lines() -> list[Path]:
    """Pages with a line that no longer page has, and no other test runs."""
    chosen, run = [], set(ELSEWHERE)
    for page in sorted(PAGES, key=lambda page: -len(commands(page))):
        if not run.issuperset(commands(page)):
            chosen.append(page)
            run.update(commands(page))
    return chosen


# Their lines train and score at length what tests of tests/cli do in small: a minute each.
LONG_PAGES = (
    "scale",
    "eval",
    "train",
    "compare_chunkers",
    "benchmarks_of_others",
    "sections",
    "answers",
    "training",
    "study",
    "languages_and_models",
)
LONG_PYTHON = ("python", "notes", "training")  # likewise of lines of Python


def of_tier(page: Path) -> object:
    """A page with the mark of the tier that runs its commands."""
    return pytest.param(page, marks=pytest.mark.full if page.stem in LONG_PAGES else pytest.mark.slow, id=page.stem)


@pytest.mark.filterwarnings("ignore:.*without a section are left out")  # true of the examples, and said
@pytest.mark.parametrize("page", map(of_tier, pages_with_own_lines()))
def test_every_command_of_the_documents_runs(page, desk, trained, capsys):
    lines = commands(page)
    own = {shlex.split(line)[3] for line in lines if line.startswith("qrag train --out ")}
    for name in GIVEN:
        if name not in own and any(name in line for line in lines):
            shutil.copytree(trained(name), name)
    for line in lines:
        if line not in ELSEWHERE:
            assert _run(line) == 0, f"{line}\n{capsys.readouterr().err}"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.full if page.stem in LONG_PYTHON else pytest.mark.slow, id=page.stem)
        for page in PAGES
        if blocks(page, "python")
    ],
)
def test_python_of_the_documents_runs(page, desk, trained):
    """Blocks of a page continue each other."""
    bodies = blocks(page, "python")
    for name in GIVEN:
        if any(name in body for body in bodies):
            shutil.copytree(trained(name), name)
    names = {"__name__": "page"}
    for body in bodies:
        for long, short in PYTHON_SHRUNK.items():
            body = body.replace(long, short)
        exec(compile(body, str(page), "exec"), names)


@pytest.mark.parametrize("package", ["qrag_jax", *(f"qrag_jax.{name}" for name in PACKAGES)])
def test_every_public_name_has_its_line(package):
    text = FENCE.sub("", (ROOT / "docs/reference/python.md").read_text(encoding="utf-8"))
    rows = {name for row in re.findall(r"^\| (`.*?) \|", text, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert set(importlib.import_module(package).__all__) - rows == set()


CITING = [ROOT / name for name in ("PAPERS.md", "CONTRIBUTING.md", "CHANGELOG.md")] + PAGES


@pytest.mark.parametrize("page", CITING, ids=lambda page: page.stem)
def test_cited_code_exists(page):
    """`path.py`, `path.py:name`, and names that follow it; paths begin here, in qrag_jax/ or in tests/."""
    missing = []
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for cell in re.split(r"[|\n]", text) if page.stem == "PAPERS" else [text]:
        names: set[str] = set()
        for path, name, more in re.findall(r"`([\w/]+\.py)(?::(\w+)[^`]*)?`([:,](?:,? `\w+`)+)?", cell):
            places = [ROOT / base / path for base in ("", "qrag_jax", "tests")]
            names = set().union(*(_names(place) for place in places if place.is_file()))
            wanted = {name} - {""} | set(re.findall(r"`(\w+)`", more))
            missing += [f"{path}:{one}" for one in wanted - names] if names else [path]
    assert missing == []


def test_cited_tests_exist():
    there = set().union(*map(_names, (ROOT / "tests").rglob("test_*.py")))
    cited = {name for page in CITING for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    assert cited - there == set()


def test_the_tree_of_the_design_is_the_one_that_is_there():
    """Every folder with its line, and every module that a line names."""
    (tree,) = [body for body in blocks(ROOT / "docs/design.md", "") if body.startswith("pyproject.toml")]
    found, missing, above = set(), [], []
    rooms = tree[tree.index("\nqrag_jax/") + 1 :]
    for indent, head, text in re.findall(r"^( *)(\S+) *(.*(?:\n {17}.*)*)", rooms, re.M):
        above = [*above[: len(indent) // 2], head]
        found.add(folder := Path(ROOT, *above))
        missing += [name for name in re.findall(r"\w+\.py", text) if not (folder / name).is_file()]
    assert missing == []
    assert found == {path.parent for path in (ROOT / "qrag_jax").rglob("*.py")}


def test_the_picture_of_the_design_names_every_package():
    words = " ".join(re.findall(r"<text[^>]*>(.*?)</text>", (ROOT / "docs/images/architecture.svg").read_text("utf-8")))
    packages = {path.parent.name for path in (ROOT / "qrag_jax").glob("*/__init__.py")}
    assert packages - set(re.findall(r"\w+", words)) == set()


@pytest.mark.parametrize("page", [page for page in CITING if ROOT / "docs" in page.parents], ids=lambda page: page.stem)
def test_a_list_begins_after_an_empty_line(page):
    """GitHub needs none, but the site does."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"^(?!- |\d+\. |\s).+\n(?:- |\d+\. ).*", text, re.M) == []


MKDOCS = ROOT / ".venv-docs/bin/mkdocs"


@pytest.mark.slow
@pytest.mark.skipif(not MKDOCS.exists(), reason="`make site` installs it")
def test_the_site_has_every_public_name_and_loads_nothing_from_other_hosts(tmp_path):
    made = subprocess.run([MKDOCS, "build", "--site-dir", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    for package in ["qrag_jax", *(f"qrag_jax.{name}" for name in PACKAGES)]:
        text = (tmp_path / f"reference/api/{package}.html").read_text(encoding="utf-8")
        assert [name for name in importlib.import_module(package).__all__ if f'id="{package}.{name}"' not in text] == []
    pages = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")]
    styles = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css")]
    assert re.findall(r'<(?:script|img|iframe|source|link)\b[^>]*(?:src|href)="(?:https?:)?//.*', "".join(pages)) == []
    assert re.findall(r"(?:@import|url\()[\s\"']*(?:https?:)?//.*", "".join(styles)) == []


def _names(path: Path) -> set[str]:
    """What a file defines, at any depth."""
    pairs = re.findall(r"^ *(?:(?:def|class) (\w+)|(\w+)(?:: [^=\n]+)? =)", path.read_text(encoding="utf-8"), re.M)
    return {name for pair in pairs for name in pair if name}


# Runs that pages speak of without training them, each with the line that makes it.
GIVEN = {
    "runs/mine": "qrag train --out runs/mine data.task=jsonl 'data.paths=[train.jsonl]'",
    "runs/index": "qrag train --out runs/index data.task=vectors 'data.paths=[index/]' model.encoder.source=vectors",
}
_HOTPOT = {
    "_id": "a1", "question": "Who has the map?", "answer": "Mary", "type": "bridge", "level": "easy",
    "context": [[title, [f"{title} has the map.", "It rained."]] for title in ("Mary", "John", "Anna", "Ada", "Ida")],
    "supporting_facts": [["Mary", 0], ["John", 0]],
}  # fmt: skip
_STORY = """\
1 Mary got the milk there.
2 John moved to the bedroom.
3 Mary travelled to the office.
4 Where is the milk? \toffice\t1 3
"""


def _run(line: str) -> int:
    """A line as a shell would have it, globs included, with less of everything."""
    parts = shlex.split(line)
    words = []
    for before, part in pairwise(["", *parts]):  # patterns of --only stand in quotes
        words += sorted(glob.glob(part)) if "*" in part and before not in ("--only", "--exclude") else [part]
    if words[1] == "train" and "--dry_run" in words:
        return main(words[1:])
    if words[1] == "train":
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    return main([*words[1:], *SHRUNK.get(" ".join(words[1:3]), SHRUNK.get(words[1], []))])


def _write_desk() -> None:
    """All the files that the documents name, in the working folder."""
    lines = [f"{who} has the {what} of the {where}." for who in ("Mary", "John") for what in ("key", "map")
             for where in ("garden", "cellar")]  # fmt: skip
    for name in ("notes/house.md", "letters/one.md", "book.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("# The house\n\n" + "\n\n".join(lines) + "\n", encoding="utf-8")
    Path("german").mkdir()
    Path("german/keller.txt").write_text("Der Schlüssel zum Dach hängt im Keller.\n", encoding="utf-8")
    Path("report.pdf").write_bytes(tiny_pdf([["The report", *lines], lines], [("The report", 0)]))
    Path("notes/garden.txt").write_text("The pump is behind the shed. " * 3 + "Who has the key? Anna took it.\n")
    examples = [
        {"question": f"Who has the {i % 7}?", "chunks": [*lines, "It rained."], "gold": [i % 8]} for i in range(24)
    ]
    _write_lines("train.jsonl", examples)
    _write_lines(
        "valid.jsonl", [{**row, "question": row["question"].replace("Who", "Which man")} for row in examples[:4]]
    )
    _write_lines("questions.jsonl", [
        {"question": "Where is Mary's key of the cellar?", "evidence": [{"file": "house.md", "text": lines[1]}]},
        {"question": "Who took the key?", "evidence": ["Anna took it."]},
        {"question": "Who has the map?", "evidence": [{"file": "house.md", "text": lines[2]}]},
    ])  # fmt: skip
    _write_index()
    for split in ("test", "dev"):
        write_beir(Path("small"), make_rows(seed=len(split)), split)
    Path("qa2_valid.txt").write_text(_STORY, encoding="utf-8")
    Path("hotpot_dev.json").write_text(json.dumps([_HOTPOT]), encoding="utf-8")
    Path("run.yaml").write_text(
        "data: {task: vectors, paths: [index/]}\nmodel: {encoder: {source: vectors}}\nenv: {num_steps: 1}\n"
    )
    Path("mine.yaml").write_text("strategies:\n  fixed:\n    - {strategy: fixed, max_tokens: 100}\n")
    Path("asked.txt").write_text('Who has the key?\n{"question": "Who has the map?", "id": "b"}\n', encoding="utf-8")
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, name)


def _write_lines(path: str, rows: list[dict]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_index() -> None:
    rng = np.random.default_rng(0)
    Path("index").mkdir()
    np.save("index/chunks.npy", rng.normal(size=(60, 8)).astype(np.float32))
    np.save("index/questions.npy", rng.normal(size=(16, 8)).astype(np.float32))
    rows = [{"question": i, "range": [i, i + 20], "gold": [i + 3, i + 7]} for i in range(16)]
    _write_lines("index/episodes.jsonl", rows)
