import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.encoders import random_encoder
from support.notes import DIARY, NOTES, QUESTION, write_diary_and_notes
from support.talkers import tiny_talker

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.cli.find import format_hits
from qrag_jax.cli.main import main
from qrag_jax.cli.output import place_to_json
from qrag_jax.documents.read import read_files
from qrag_jax.index import sources
from qrag_jax.index.index import open_index
from qrag_jax.index.methods import single_step_method
from qrag_jax.models.decoder.weights import save_decoder
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.search.sentences import make_place
from qrag_jax.types import Document

SENTENCES = ("--strategy", "fixed", "--max_tokens", "11")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [DIARY, NOTES, QUESTION])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer, max_seq_length=16)
    return str(folder)


@pytest.fixture
def find(tmp_path, monkeypatch, encoder, capsys):
    """(*argv, question=...) -> exit code, standard output, standard error; of two files and a small encoder."""
    monkeypatch.chdir(tmp_path)
    write_diary_and_notes(tmp_path, "notes/diary.txt")

    def call(*argv, question=QUESTION, paths=("notes",), model=encoder):
        words = [*paths, *([] if question is None else [question]), *(["--model", model] if model else [])]
        code = main(["find", *words, *argv])
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return call


def test_a_folder_that_may_not_be_read_is_no_run(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(sources, "checkpoint_steps", refuse)
    assert not sources.is_run(str(tmp_path))


def text_of(file):
    with open(file, encoding="utf-8", newline="") as stream:
        return stream.read()


@pytest.mark.parametrize("retriever", ["hybrid", "dense", "bm25", "single_step"])
def test_the_passages_are_those_of_the_method(find, encoder, retriever):
    flags = [] if retriever == "hybrid" else ["--retriever", retriever]  # which is the default
    found = find(*flags, "--top_k", "2", "--json", *SENTENCES)
    answer = json.loads(found.out)
    method = single_step_method(retriever, encoder, ChunkConfig("fixed", max_tokens=11))
    corpus = method.build(read_files("notes"))
    ranked = method.retrieve(QUESTION, corpus, 2)
    assert (found.code, found.err) == (0, "")
    assert (answer["question"], answer["retriever"], answer["num_chunks"]) == (QUESTION, retriever, 5)
    assert [passage["text"] for passage in answer["passages"]] == [corpus.texts[node] for node in ranked.ids]
    assert [passage["score"] for passage in answer["passages"]] == pytest.approx(ranked.scores.tolist(), rel=1e-6)
    for rank, passage in enumerate(answer["passages"], 1):
        text = text_of(passage["file"])
        assert passage["rank"] == rank and passage["spans"] == [[passage["start"], passage["end"]]]
        assert text[passage["start"] : passage["end"]] == passage["text"]
        sentence = passage["sentence"]
        assert passage["line"] == sentence["line"] == text[: sentence["start"]].count("\n") + 1
    assert (answer["cost"]["embedder_tokens"] > 0) == (retriever != "bm25")
    assert set(answer["cost"]["seconds"]) - {"embed"} == {"read", "load", "chunk", "search"}


def test_text(find):
    found = find("--retriever", "bm25", *SENTENCES, question="Whose garden, whose milk?")
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines() == [
        " 1  notes/b.md:3",
        "    # Notes John travelled to the garden.",
        " 2  notes/diary.txt:1",
        "    Mary picked up the milk there.",
    ]


def test_many_questions_are_answered_as_each_alone(find, tmp_path):
    (tmp_path / "questions.txt").write_text(f'{QUESTION}\n{{"question": "Who is in the garden?", "id": "b"}}\n')
    flags = ("--questions", "questions.txt", "--json", *SENTENCES)
    found = [json.loads(line) for line in find(*flags, question=None).out.splitlines()]
    for answer, question, name in zip(found, (QUESTION, "Who is in the garden?"), (None, "b"), strict=True):
        alone = json.loads(find("--json", *SENTENCES, question=question).out)
        assert answer.get("id") == name
        for passage in (*answer["passages"], *alone["passages"]):  # last digits depend on what is embedded with it
            for scored in (passage, passage["sentence"]):
                scored["score"] = pytest.approx(scored["score"], abs=1e-6)
        assert {**answer, "cost": None, "id": None} == {**alone, "cost": None, "id": None}
    assert set(found[1]["cost"]["seconds"]) == {"search"}
    assert found[0]["cost"]["embedder_tokens"] > found[1]["cost"]["embedder_tokens"] == 0


def test_questions_on_standard_input_one_of_which_finds_nothing(find, monkeypatch):
    lines = f"{QUESTION}\nzebra\n".encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    found = find("--questions", "-", "--retriever", "bm25", *SENTENCES, question=None)
    assert found.code == 0
    assert found.out.splitlines()[:2] == [QUESTION, " 1  notes/diary.txt:1"]
    assert found.out.split("\n\n")[1].startswith("zebra\nnone of 5 passages shares a word with the question; use")


LONG = "milk " * 20


def test_a_question_of_a_file_that_cannot_be_asked_is_named_before_any_search(find, tmp_path):
    (tmp_path / "questions.txt").write_text(f'{QUESTION}\n\n{{"question": "{LONG}", "id": "b"}}\n')
    found = find("--questions", "questions.txt", *SENTENCES, question=None)
    assert (found.code, found.out) == (1, "")
    assert "qrag: error: questions.txt:3: question 'milk milk" in found.err and "the encoder reads 16" in found.err


def test_standard_input_is_answered_up_to_a_question_that_cannot_be_asked(find, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(f"{QUESTION}\n{LONG}\n".encode())))
    found = find("--questions", "-", "--json", *SENTENCES, question=None)
    (answer,) = found.out.splitlines()
    assert json.loads(answer)["question"] == QUESTION
    assert found.code == 1 and "qrag: error: -:2: question 'milk milk" in found.err


def test_files_are_excluded_and_passed_over(find, tmp_path):
    (tmp_path / "notes/.hidden.md").write_text("The lamp is hidden.")
    (tmp_path / "notes/drafts").mkdir()
    (tmp_path / "notes/drafts/d.md").write_text("The lamp is a draft.")
    said = r"passed over 1 name in folders \(1 hidden; "
    asked = {"question": "Where is the lamp?"}
    with pytest.warns(UserWarning, match=said):
        assert "draft" in find("--retriever", "bm25", **asked).out
    with pytest.warns(UserWarning, match=f"excluded 1 name; {said}"):
        assert "draft" not in find("--retriever", "bm25", "--exclude", "drafts/", **asked).out
    found = find("--retriever", "bm25", "--exclude", "drafts/", "--exclude", "*.txt", "--no_ignore", **asked)
    assert found.code == 0 and "hidden" in found.out and "draft" not in found.out


def test_only_strict_and_encoding(find, tmp_path):
    (tmp_path / "notes" / "latin.txt").write_bytes("Das Caf\u00e9.".encode("latin-1"))
    with pytest.warns(UserWarning, match=r"left out 1 file in folders \(notes/latin.txt: not UTF-8 at byte 7"):
        assert find("--retriever", "bm25", question="Where is the garden?").code == 0
    found = find("--strict")
    assert found.code == 1 and "notes/latin.txt: not UTF-8 at byte 7" in found.err
    found = find("--only", "latin.*", "--encoding", "latin-1", "--json", "--retriever", "bm25", question="Caf\u00e9?")
    assert [passage["text"] for passage in json.loads(found.out)["passages"]] == ["Das Caf\u00e9."] and not found.err
    found = find("--only", "reports/*")
    assert found.code == 2 and "--only 'reports/*': matches none of 3 documents (notes/b.md, " in found.err


@pytest.fixture
def indexed(find, encoder, capsys):
    assert main(["index", "build", "notes.index", "notes", "--model", encoder, *SENTENCES]) == 0
    capsys.readouterr()
    return "notes.index"


@pytest.mark.parametrize("retriever", ["hybrid", "dense", "bm25"])
def test_an_index_is_searched_as_its_files_are(find, indexed, retriever):
    flags = ("--retriever", retriever, "--json")
    plain, found = find(*flags, *SENTENCES), find(*flags, paths=[indexed], model=None)
    plain, found = json.loads(plain.out), json.loads(found.out)
    for name in ("question", "retriever", "num_chunks", "num_chunks_cut"):
        assert found[name] == plain[name]
    assert [dict(one, score=None) for one in found["passages"]] == [dict(one, score=None) for one in plain["passages"]]
    assert found["cost"]["embedder_tokens"] == (0 if retriever == "bm25" else 7)  # of the question alone


@pytest.mark.slow
def test_a_search_of_an_index_imports_no_jax(indexed):
    code = (
        "import sys; from qrag_jax.cli.main import main; done = main(sys.argv[1:]); "
        "sys.exit(done or 9 * bool({'jax', 'flax'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", code, "find", indexed, QUESTION]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_documents_of_an_index_by_their_names(find, indexed):
    found = json.loads(find("--only", "b.md", "--json", paths=[indexed], model=None).out)
    assert {passage["file"] for passage in found["passages"]} == {"notes/b.md"} and found["num_chunks"] == 2
    found = find("--only", "c.md", paths=[indexed], model=None)
    assert found.code == 2 and "--only 'c.md': matches none of 2 documents (notes/b.md, notes/diary.txt)" in found.err


def test_what_does_not_go_with_an_index(find, indexed, tmp_path):
    for argv, paths, message in [
        (
            ["--strategy", "fixed"],
            [indexed],
            "--strategy: applies only to files; notes.index is an index, made with --st",
        ),
        (["--strict"], [indexed], "--strict: applies only to files"),
        (["--encoding", "latin-1"], [indexed], "--encoding: applies only to files"),
        (["--encoding", "nope"], [indexed], "encoding 'nope': Python knows no text encoding of that name"),
        (
            [],
            [indexed, "notes"],
            "notes.index: is an index, which cannot be mixed with files",
        ),
        ([], ["notes", indexed], "notes.index: is an index, which cannot be mixed with files"),
    ]:
        found = find(*argv, paths=paths, model=None)
        assert (found.code, found.out) == (2, "") and message in found.err
    for name in ("utf-8", "UTF8", "utf_8_sig"):  # is what find says of files by default, by any name
        assert find("--retriever", "bm25", "--encoding", name, paths=[indexed], model=None).code == 0
    (tmp_path / indexed / "index.json").write_text("{}")
    found = find(paths=[indexed], model=None)
    assert found.code == 1 and "notes.index/index.json: changed since it was written" in found.err


def test_a_folder_of_files_may_have_an_index_json(find, tmp_path):
    (tmp_path / "notes" / "index.json").write_text("{}")
    assert find("--retriever", "bm25").code == 0


def test_passages_beyond_the_window_are_told(find):
    found = find("--max_tokens", "200")
    assert found.code == 0
    assert found.err == (
        "2 of 2 passages are longer than the encoder reads; only their beginning was searched by meaning; use a lower "
        "--max_tokens to get shorter passages\n"
    )


@pytest.mark.parametrize(
    ("argv", "question", "code", "message"),
    [
        (["--retriever", "bm25"], "zebra", 1, "none of 2 passages shares a word with the question"),
        (
            ["--num_steps", "3"],
            QUESTION,
            2,
            "--num_steps: works only with a run, not hybrid; leave it out",
        ),
        (
            ["--retriever", "nearest"],
            QUESTION,
            2,
            "--retriever nearest: not a retriever, and no such folder; give hybrid, dense, bm25, or the",
        ),
        (["--questions", "-", "-"], None, 2, "--questions -: standard input is also given as a document"),
    ],
)
def test_refusals(find, argv, question, code, message):
    own = {} if {"nearest", "--model"}.isdisjoint(argv) else {"model": None}
    found = find(*argv, question=question, **own)
    assert (found.code, found.out) == (code, "") and message in found.err


def test_pages_stand_in_the_place_of_lines():
    document = Document("a/report.pdf", "one\ntwo\nthree", {"pages": (0, 4, 8)})
    places = [make_place(document, (start, start + 1)) for start in (0, 4, 12)]
    assert [str(place) for place in places] == [f"a/report.pdf#page={n}" for n in (1, 2, 3)]
    assert place_to_json(places[1]) == {"file": "a/report.pdf", "line": 2, "page": 2}
    assert place_to_json(make_place(Document("a.md", "one\ntwo"), (4, 5))) == {"file": "a.md", "line": 2}


def test_a_passage_of_several_spans_has_one_place(find, encoder):
    with open_index("notes", retriever="bm25", encoder=encoder, chunking=ChunkConfig("linkage")) as index:
        shown = format_hits(index.search("milk", 1))
    assert shown.splitlines()[0] == " 1  notes/diary.txt:1"


def test_a_decoder_reranks(find, tmp_path):
    save_decoder(tmp_path / "tiny", tiny_talker(max_positions=1024))
    flags = ("--retriever", "bm25", "--top_k", "2", *SENTENCES)
    plain = json.loads(find("--json", *flags).out)
    found = find("--json", "--rerank", "tiny", "--rerank_passages", "4", *flags)
    answer = json.loads(found.out)
    told, passages = answer["rerank"], answer["passages"]
    assert (found.code, found.err) == (0, "") and "rerank" not in plain and "rerank_score" not in plain["passages"][0]
    assert (told["model"], told["weight"], told["num_passages_cut"]) == ("likelihood:tiny", None, 0)
    assert [passage["score"] for passage in passages] == [passage["rerank_score"] for passage in passages]
    assert answer["cost"]["reranker_tokens"] > 0 and answer["cost"]["seconds"]["rerank"] > 0
    wrong = find("--rerank_files", "3", *flags)
    assert wrong.code == 2 and "--rerank_files: works only with --rerank MODEL" in wrong.err
