"""HotpotQA, MuSiQue and 2WikiMultihopQA from small rows written by hand, in every layout that they are published in."""

import gzip
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.data.questions import multihop
from qrag_jax.data.questions.multihop import READERS, MultihopSet, describe, read_2wiki, read_hotpot, read_musique
from qrag_jax.types import Example, InputError, UsageError

HOTPOT = [
    {
        "_id": "h1",
        "question": "Which river \n passes the town of Ada's mill?",
        "answer": "the Oru",
        "type": "bridge",
        "level": "easy",
        "context": [
            ["Oru", ["The Oru is a river.", " It passes Belm. "]],
            ["Cairn", ["A cairn is a heap of stones."]],
            ["Ada's mill", ["Ada's  mill grinds rye.", "It stands in Belm."]],
        ],
        "supporting_facts": [["Ada's mill", 1], ["Oru", 1], ["Oru", 0]],
    },
    {
        "_id": "h2",
        "question": "Is Cairn older than Dun?",
        "answer": "yes",
        "type": "comparison",
        "level": "hard",
        "context": [["Dun", ["Dun is young."]], ["Cairn", ["Cairn is old."]]],
        "supporting_facts": [["Cairn", 0], ["Dun", 0]],
    },
]
HOTPOT_EXAMPLES = [
    Example(
        "h1",
        "Which river passes the town of Ada's mill?",
        (
            "Oru: The Oru is a river. It passes Belm.",
            "Cairn: A cairn is a heap of stones.",
            "Ada's mill: Ada's mill grinds rye. It stands in Belm.",
        ),
        (0, 2),
        "the Oru",
    ),
    Example("h2", "Is Cairn older than Dun?", ("Dun: Dun is young.", "Cairn: Cairn is old."), (0, 1), "yes"),
]
HOTPOT_ANSWERS = [("the Oru",), ("yes",)]

MUSIQUE = [
    {
        "id": "2hop__1_2",
        "paragraphs": [
            {"idx": 0, "title": "Fen", "paragraph_text": "Fen is  wet.", "is_supporting": False},
            {"idx": 1, "title": "Gull", "paragraph_text": "Gull was written by Ilse.", "is_supporting": True},
            {"idx": 2, "title": "Ilse", "paragraph_text": "Ilse was born in Jura.", "is_supporting": True},
        ],
        "question": "Where was the author of Gull born?",
        "question_decomposition": [
            {"id": 1, "question": "Gull >> author", "answer": "Ilse", "paragraph_support_idx": 1},
            {"id": 2, "question": "Where was #1 born?", "answer": "Jura", "paragraph_support_idx": 2},
        ],
        "answer": "Jura",
        "answer_aliases": ["Jura mountains"],
        "answerable": True,
    }
]
MUSIQUE_EXAMPLES = [
    Example(
        "2hop__1_2",
        "Where was the author of Gull born?",
        ("Fen: Fen is wet.", "Gull: Gull was written by Ilse.", "Ilse: Ilse was born in Jura."),
        (1, 2),
        "Jura",
    )
]
MUSIQUE_ANSWERS = [("Jura", "Jura mountains")]


def write(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def titles(read: list[Example]) -> dict[str, str]:
    """Of chunks whose titles hold no colon."""
    return {chunk: chunk.partition(": ")[0] for example in read for chunk in example.chunks}


def hub_columns(row: dict) -> dict:
    """A row of HotpotQA as the hub has it: columns of lists, `id` in the place of `_id`."""
    titles, sentences = zip(*row["context"], strict=True)
    fact_titles, numbers = zip(*row["supporting_facts"], strict=True)
    return {key: value for key, value in row.items() if key != "_id"} | {
        "id": row["_id"],
        "context": {"title": list(titles), "sentences": list(sentences)},
        "supporting_facts": {"title": list(fact_titles), "sent_id": list(numbers)},
    }


def json_strings(row: dict) -> dict:
    return row | {field: json.dumps(row[field]) for field in ("context", "supporting_facts")}


def paragraph(title: str, text: str, supporting: object, **more: object) -> dict:
    return {"title": title, "paragraph_text": text, "is_supporting": supporting} | more


def save(tmp_path: Path, kind: str, rows: list[dict]) -> Path:
    """The same rows in one of the kinds of files."""
    path = tmp_path / f"set{kind}"
    data = json.dumps(rows) if kind.startswith(".json") and "l" not in kind else "\n".join(map(json.dumps, rows))
    if kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "-saved":
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    elif kind.endswith(".gz"):
        path.write_bytes(gzip.compress(data.encode()))
    else:
        path.write_text(data)
    return path


@pytest.mark.parametrize("read", [read_hotpot, read_2wiki])
@pytest.mark.parametrize("kind", [".json", ".json.gz", ".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("layout", [dict, hub_columns, json_strings])
def test_titled_rows_in_json(tmp_path, read, kind, layout):
    path = save(tmp_path, kind, [layout(row) for row in HOTPOT])
    assert read(path) == MultihopSet(HOTPOT_EXAMPLES, {}, {}, HOTPOT_ANSWERS, titles(HOTPOT_EXAMPLES))


@pytest.mark.parametrize("kind", [".parquet", "-saved"])
@pytest.mark.parametrize("layout", [hub_columns, json_strings])
def test_titled_rows_in_tables(tmp_path, kind, layout):
    path = save(tmp_path, kind, [layout(row) for row in HOTPOT])
    assert (
        read_hotpot(path)
        == read_2wiki(path)
        == MultihopSet(HOTPOT_EXAMPLES, {}, {}, HOTPOT_ANSWERS, titles(HOTPOT_EXAMPLES))
    )


@pytest.mark.parametrize("kind", [".json", ".json.gz", ".jsonl", ".jsonl.gz", ".parquet", "-saved"])
def test_musique_rows(tmp_path, kind):
    assert read_musique(save(tmp_path, kind, MUSIQUE)) == MultihopSet(
        MUSIQUE_EXAMPLES, {}, {}, MUSIQUE_ANSWERS, titles(MUSIQUE_EXAMPLES)
    )


def test_from_the_hub(monkeypatch):
    stored = {
        ("hotpotqa/hotpot_qa", "distractor", "validation"): [hub_columns(row) for row in HOTPOT],
        ("someone/MuSiQue", None, "train"): MUSIQUE,
    }
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, config, split: datasets.Dataset.from_list(stored[name, config, split])
    )
    assert READERS["hotpot"]("hotpotqa/hotpot_qa:distractor@validation").examples == HOTPOT_EXAMPLES
    assert READERS["musique"]("someone/MuSiQue@train").examples == MUSIQUE_EXAMPLES


def test_a_list_of_objects_and_another_name_of_the_sentences(tmp_path):
    row = HOTPOT[1] | {"context": [{"title": title, "content": sentences} for title, sentences in HOTPOT[1]["context"]]}
    assert read_2wiki(write(tmp_path, row)).examples == HOTPOT_EXAMPLES[1:]


def test_ids(tmp_path):
    bare = {key: value for key, value in HOTPOT[1].items() if key != "_id"}
    path = write(tmp_path, bare, bare | {"id": 7}, bare | {"_id": None, "id": "b"}, bare | {"_id": "a", "id": "c"})
    assert [example.query_id for example in read_2wiki(path).examples] == ["set.jsonl:1", "7", "b", "a"]
    listed = save(tmp_path, ".json", [bare, bare])
    assert [example.query_id for example in read_2wiki(listed).examples] == ["set.json:0", "set.json:1"]


def test_an_id_used_twice_names_both_places(tmp_path):
    with pytest.raises(InputError, match=r"set.jsonl:3: id 'h1' was used before at .*set.jsonl:1$"):
        read_hotpot(write(tmp_path, *HOTPOT, HOTPOT[0]))
    path = save(tmp_path, ".parquet", MUSIQUE * 2)
    with pytest.raises(InputError, match=r"set.parquet: row 1: id '2hop__1_2' was used before at .*: row 0$"):
        read_musique(path)


def test_answers_may_be_missing(tmp_path):
    path = write(tmp_path, HOTPOT[0] | {"answer": None}, {k: v for k, v in HOTPOT[1].items() if k != "answer"})
    assert [example.answer for example in read_hotpot(path).examples] == [None, None]


def test_broken_gold_is_counted(tmp_path):
    def facts(name: str, *pairs: list) -> dict:
        return HOTPOT[0] | {"_id": name, "supporting_facts": list(pairs)}

    read = read_2wiki(
        write(
            tmp_path,
            facts("fine", ["Oru", 1]),
            facts("beyond", ["Oru", 2], ["Cairn", 9]),
            facts("negative", ["Oru", -1]),
            facts("null", ["Oru", None]),
            facts("elsewhere", ["Oru", 0], ["Atlantis", 0]),
            facts("nothing"),
            facts("nothing"),
        )
    )
    assert [(example.query_id, example.gold) for example in read.examples] == [
        ("fine", (0,)),
        ("beyond", (0, 1)),
        ("negative", (0,)),
        ("null", (0,)),
    ]
    assert read.left_out == {"gold title not in the context": 1, "no gold paragraph": 2}
    assert read.odd == {"sentence number out of range": 3}
    assert describe("2wiki", read) == (
        "2wiki: 4 questions, chunks a question 3, gold a question 1.25 (1 to 2); "
        "left out: 1 (gold title not in the context), 2 (no gold paragraph); "
        "kept with odd labels: 3 (sentence number out of range)"
    )


def test_describe_clean_data_and_none(tmp_path):
    read = read_hotpot(write(tmp_path, *HOTPOT))
    assert describe("hotpot", read) == (
        "hotpot: 2 questions, chunks a question 2.50 (2 to 3), gold a question 2; left out: none"
    )
    assert (
        describe("x", MultihopSet([], {}, {}))
        == "x: 0 questions, chunks a question -, gold a question -; left out: none"
    )


def test_a_repeated_gold_paragraph_is_one_chunk_and_a_repeated_distractor_stays(tmp_path):
    gold, other = ["Oru", ["The Oru", "flows."]], ["Fen", ["Wet."]]
    copy = ["Oru ", ["The Oru flows."]]  # other sentence borders, the same chunk
    row = HOTPOT[0] | {"context": [other, gold, other, copy, gold], "supporting_facts": [["Oru", 1]]}
    read = read_hotpot(write(tmp_path, row))
    assert read.examples[0].chunks == ("Fen: Wet.", "Oru: The Oru flows.", "Fen: Wet.")
    assert read.examples[0].gold == (1,)
    assert read.odd == {"gold paragraph repeated, first copy kept": 1}


def test_a_gold_title_above_different_paragraphs_takes_them_all(tmp_path):
    context = [["Oru", ["A river."]], ["Fen", ["Wet."]], ["Oru", ["A film."]]]
    read = read_hotpot(write(tmp_path, HOTPOT[0] | {"context": context, "supporting_facts": [["Oru", 0]]}))
    assert read.examples[0].gold == (0, 2)
    assert read.odd == {multihop.TITLE_SHARED: 1}


def test_empty_titles_and_paragraphs(tmp_path):
    context = [["Oru", []], ["", ["No title."]], ["Fen", [" ", ""]]]
    read = read_hotpot(write(tmp_path, HOTPOT[0] | {"context": context, "supporting_facts": [["Oru", 0]]}))
    assert read.examples[0].chunks == ("Oru", "No title.", "Fen")
    assert read.odd == {"sentence number out of range": 1}


def test_musique_gold_and_its_cross_check(tmp_path):
    row = MUSIQUE[0]
    hops = row["question_decomposition"]
    shuffled = [paragraph("A", "a", True, idx=5), paragraph("B", "b", False, idx=3), paragraph("C", "c", True, idx=4)]
    two_hops = [{"paragraph_support_idx": 4}, {"paragraph_support_idx": 5}]
    bare = [paragraph("A", "a", True), paragraph("B", "b", False)]
    rows = [
        row | {"id": "agrees", "paragraphs": shuffled, "question_decomposition": two_hops},
        row | {"id": "by position", "paragraphs": bare, "question_decomposition": [{"paragraph_support_idx": 0}]},
        row | {"id": "unchecked", "question_decomposition": []},
        row | {"id": "unchecked too", "question_decomposition": None},
        row | {"id": "fewer", "question_decomposition": hops[:1]},
        row | {"id": "more", "question_decomposition": hops + [{"paragraph_support_idx": 0}]},
        row | {"id": "null", "question_decomposition": [{"paragraph_support_idx": None}]},
        row | {"id": "columns", "question_decomposition": {"paragraph_support_idx": [1, 2]}},
    ]
    read = read_musique(write(tmp_path, *rows))
    assert [example.gold for example in read.examples] == [(0, 2), (0,)] + [(1, 2)] * 6
    assert read.left_out == {}
    assert read.odd == {"is_supporting and question_decomposition disagree, the former taken": 3}


def test_musique_leaves_out_what_cannot_be_answered(tmp_path):
    row = MUSIQUE[0]
    unmarked = [entry | {"is_supporting": False} for entry in row["paragraphs"]]
    # The full release has a question and its unanswerable twin under one id.
    rows = [row | {"answerable": False}, row, row | {"id": "none", "paragraphs": unmarked}, row | {"answerable": False}]
    read = read_musique(write(tmp_path, *rows))
    left_out = {"not answerable": 2, "no gold paragraph": 1}
    assert read == MultihopSet(MUSIQUE_EXAMPLES, left_out, {}, MUSIQUE_ANSWERS, titles(MUSIQUE_EXAMPLES))


def test_a_copy_of_a_supporting_paragraph_that_is_not_marked_is_the_same_chunk(tmp_path):
    paragraphs = [paragraph("A", "a", False), paragraph("B", "b", False), paragraph("A", "a", True)]
    row = MUSIQUE[0] | {"paragraphs": paragraphs, "question_decomposition": None}
    read = read_musique(write(tmp_path, row))
    assert (read.examples[0].chunks, read.examples[0].gold) == (("A: a", "B: b"), (0,))
    assert read.odd == {multihop.GOLD_REPEATED: 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"question": " \n"}, "empty question"),
        ({"context": [*HOTPOT[0]["context"], ["", [" "]]]}, "paragraph without title and text"),
        ({"question": "What is \ud83d?"}, r"half of a character (a lone surrogate)"),
    ],
)
def test_a_question_that_cannot_be_posed_is_counted_and_the_others_are_read(tmp_path, change, reason):
    read = read_hotpot(write(tmp_path, HOTPOT[1], HOTPOT[0] | change))
    assert [example.query_id for example in read.examples] == [HOTPOT[1]["_id"]]
    assert read.left_out == {reason: 1}


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({}, ()),
        ({"answer": None}, ()),
        ({"answer": " "}, ()),
        ({"answer": 1912}, ("1912",)),
        ({"answer": True}, ("true",)),
        ({"answer": ["a", "b", "a"]}, ("a", "b")),
        ({"answer": "a", "answer_aliases": ["b", "a", ""]}, ("a", "b")),
        ({"answer": None, "answer_aliases": ["b"]}, ("b",)),
    ],
)
def test_all_answers_that_count_as_right(tmp_path, row, answers):
    plain = {key: value for key, value in HOTPOT[0].items() if key != "answer"}
    assert read_hotpot(write(tmp_path, plain | row)).answers == [answers]


@pytest.mark.parametrize("answer", [1912, True, ["a", "b"]])
def test_an_answer_of_another_kind_is_kept_as_json(tmp_path, answer):
    (example,) = read_hotpot(write(tmp_path, HOTPOT[0] | {"answer": answer})).examples
    assert example.answer == json.dumps(answer)


@pytest.mark.parametrize("number", ["0", 0.0, True, None])
def test_a_sentence_number_of_another_kind_is_odd(tmp_path, number):
    facts = [[title, number] for title, _ in HOTPOT[0]["supporting_facts"]]
    read = read_hotpot(write(tmp_path, HOTPOT[0] | {"supporting_facts": facts}))
    assert read.odd["sentence number out of range"] == 1


def test_a_paragraph_without_title_is_its_text(tmp_path):
    context = [*HOTPOT[0]["context"], [None, ["Alone."]]]
    (example,) = read_hotpot(write(tmp_path, HOTPOT[0] | {"context": context})).examples
    assert example.chunks[-1] == "Alone."


@pytest.mark.parametrize("read, row", [(read_hotpot, HOTPOT[0]), (read_musique, MUSIQUE[0])])
def test_titles_are_handed_on_as_they_are(tmp_path, read, row):
    given = [
        ("Oru: A River (film)", "It flows."),
        ("", "No title."),
        ("Bare", ""),
        ("Oru", "A River (film): It flows."),
    ]
    if read is read_musique:
        row = row | {
            "paragraphs": [paragraph(title, text, True) for title, text in given],
            "question_decomposition": [],
        }
    else:
        context = [[title, [text]] for title, text in given]
        row = row | {"context": context, "supporting_facts": [["Bare", 0]]}
    assert read(write(tmp_path, row)).titles == {
        "Oru: A River (film): It flows.": "Oru: A River (film)",  # the first of two that give one text
        "No title.": "",
        "Bare": "Bare",
    }


def test_a_list_in_a_file_of_lines_is_read(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(HOTPOT))
    assert len(read_hotpot(path).examples) == len(HOTPOT)


def test_files_without_labels(tmp_path):
    with pytest.raises(InputError, match=r"set.jsonl:1: supporting_facts is missing: a test file without labels"):
        read_hotpot(write(tmp_path, {key: value for key, value in HOTPOT[0].items() if key != "supporting_facts"}))
    unlabelled = [{"title": "A", "paragraph_text": "a"}]
    with pytest.raises(InputError, match=r"paragraphs\[0\] is_supporting is missing: a test file without labels"):
        read_musique(write(tmp_path, {"id": "x", "question": "Who?", "paragraphs": unlabelled}))
    # Test splits on the hub have the columns, empty.
    path = write(tmp_path, *(hub_columns(row) | {"supporting_facts": {"title": [], "sent_id": []}} for row in HOTPOT))
    with pytest.raises(InputError, match=r"no question can be posed: 2 \(no gold paragraph\); is it a test file"):
        read_hotpot(path)


def test_json_text_that_is_none_and_numbers_that_are_none(tmp_path):
    for read, good, change in (
        (read_hotpot, HOTPOT[0], {"context": "oops"}),
        (read_2wiki, HOTPOT[0], {"context": "oops"}),
        (read_musique, MUSIQUE[0], {"question_decomposition": [{"paragraph_support_idx": [1]}]}),
    ):
        with pytest.raises(InputError, match="set.jsonl:1: .*; expected rows"):
            read(write(tmp_path, good | change))


def test_a_wrong_file_or_reader(tmp_path):
    with pytest.raises(InputError, match=r"set.jsonl:1: context must be a list, got None; expected .* of HotpotQA"):
        read_hotpot(write(tmp_path, *MUSIQUE))
    with pytest.raises(InputError, match=r"set.jsonl:1: paragraphs must be a list, got None; expected .* of MuSiQue"):
        read_musique(write(tmp_path, *HOTPOT))
    with pytest.raises(UsageError, match=r"no.json: no such file; expected rows .* of 2WikiMultihopQA"):
        read_2wiki(tmp_path / "no.json")


TITLES = st.lists(st.sampled_from("ABCDEFGH"), min_size=1, max_size=8, unique=True)
SENTENCES = st.lists(st.text(alphabet="ab \u00a0\n", max_size=6), max_size=3)


@examples(60)
@given(data=st.data())
def test_gold_titles_are_the_supporting_titles_and_order_is_kept(tmp_path_factory, data):
    context = [[title, data.draw(SENTENCES)] for title in data.draw(TITLES)]
    titles = [title for title, _ in context]
    facts = data.draw(st.lists(st.tuples(st.sampled_from(titles), st.integers(0, 3)), min_size=1, max_size=5))
    row = HOTPOT[0] | {"context": context, "supporting_facts": [list(fact) for fact in facts]}
    folder = tmp_path_factory.mktemp("drawn")
    read = read_hotpot(write(folder, row))
    (example,) = read.examples
    assert [chunk.partition(":")[0] for chunk in example.chunks] == titles
    assert {titles[index] for index in example.gold} == {title for title, _ in facts}
    assert example.gold == tuple(sorted(set(example.gold)))
    for chunk, (_, sentences) in zip(example.chunks, context, strict=True):
        assert chunk.partition(": ")[2].split() == " ".join(sentences).split()
    assert read.odd.get("sentence number out of range", 0) == any(n >= len(dict(context)[t]) for t, n in facts)
    for layout in (hub_columns, json_strings):
        assert read_hotpot(write(folder, layout(row))) == read
