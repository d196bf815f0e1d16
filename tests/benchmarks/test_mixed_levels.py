"""The benchmark of mixed questions: places of tokens, questions by document, and the rows of planners."""

import json

import numpy as np
import pytest

from benchmarks.smartchunk.mixed_decoders import METHODS, forms, new_decoder, run_config
from benchmarks.smartchunk.mixed_levels import Study, _columns, planning_records
from benchmarks.smartchunk.mixed_planners import Mixed, best, by_kind, classified, rows_of, surface_features
from benchmarks.smartchunk.mixed_questions import BUDGETS, Asked, TokenPlaces, _known, _twin, ask, ways
from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges, format_levels
from qrag_jax.chunking.tree.plan_texts import parse_plan
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.llm.local import LocalGenerator
from qrag_jax.measures.evidence_scores import measure_tokens, span_scores
from qrag_jax.search.corpus import Corpus
from qrag_jax.types import Chunk, Document, Message, Sampling

NAMES = ("document", "512", "256", "128", "64", "32")


def question(name, document, start, end, text="Who?"):
    return StudyQuestion(name, text, (document,), (Evidence(document, start, end),))


class WordEncoder:
    def count(self, text):
        return len(text.split())


def test_places_of_tokens_give_the_recall_of_span_scores():
    rng = np.random.default_rng(0)
    documents = [Document(name, " ".join(f"w{i}" for i in range(400))) for name in ("a", "b")]
    nodes = []
    for document in documents:
        cuts = [0, *(i for i, letter in enumerate(document.text) if letter == " " and rng.random() < 0.1)]
        cuts.append(len(document.text))
        nodes += [
            Chunk(f"{document.id}{i}", document.id, ((start, end),), 0, 0)
            for i, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False))
        ]
    places = TokenPlaces(Corpus(tuple(documents), tuple(nodes)), WordEncoder())
    measures = {one.id: measure_tokens(one.text, WordEncoder().count) for one in documents}
    for _ in range(20):
        start = int(rng.integers(0, 800))
        asked = StudyQuestion("q", "q", ("a", "b"), (Evidence("a", start, start + 200), Evidence("b", 30, 41)))
        ranked = rng.permutation(len(nodes))[:15]
        found = places.recall(ranked, places.evidence(asked))
        spans = [(nodes[node].document_id, nodes[node].spans) for node in ranked]
        gold = [(one.document_id, ((one.start, one.end),)) for one in asked.evidence]
        fits = places.ends[ranked] - places.starts[ranked]
        assert fits.sum() < BUDGETS[-1]
        assert found[-1] == (
            pytest.approx(span_scores(spans, gold, [15], measures.__getitem__)[0].recall),
            pytest.approx(fits.sum()),
        )
        (recall, sent), whole = found[0], int((np.cumsum(fits) <= BUDGETS[0]).sum())
        low, high = (one.recall for one in span_scores(spans, gold, [whole, whole + 1], measures.__getitem__))
        assert low - 1e-9 <= recall <= high + 1e-9 and sent == pytest.approx(min(BUDGETS[0], fits.sum()))


def test_a_node_that_does_not_fit_is_cut_to_the_token():
    text = " ".join(["w"] * 300)
    corpus = Corpus((Document("a", text),), (Chunk("a0", "a", ((0, len(text)),), 0, 300),))
    places = TokenPlaces(corpus, WordEncoder())
    found = places.recall(np.array([0]), places.evidence(question("q", "a", 0, len(text))))
    assert found == [(pytest.approx(256 / 300), 256.0), *[(1.0, 300.0)] * 3]


def task(name, documents, own):
    texts = tuple(Document(f"{name}/{i}", "one two three four " * 40) for i in range(documents))
    questions = tuple(
        question(f"{name}.{i}.{j}", one.id, 10 * j, 10 * j + 8, own.format(i, j))
        for i, one in enumerate(texts)
        for j in range(4)
    )
    spans = {one.id: ((0, len(one.text)),) for one in texts}
    return StudyTask(name, "evidence", texts, questions, spans)


def test_kinds_are_balanced_and_every_document_is_in_one_part():
    texts = ["Who was {} in {}?", "When was {} in {}?", "As ({}, {}) says, it holds.", "Title {}: Part: Heading {}"]
    sizes = (20, 3, 20, 20)
    names = ("squad", "chroma", "scisumm", "wikitext2")
    asked = ask([task(*one) for one in zip(names, sizes, texts, strict=True)], 30)
    kinds = [one.kind for one in asked]
    assert [kinds.count(kind) for kind in ("fact", "citance", "section", "document")] == [30, 30, 30, 30]
    assert kinds.count("comparison") > 10
    part = {}
    for one in asked:
        for name in one.question.relevant:
            assert part.setdefault(name, one.part) == one.part
        assert len(one.question.relevant) == 1 + (one.kind == "comparison")
    pairs = [one for one in asked if one.kind == "comparison"]
    groups = {name: one.group for one in asked if one.kind != "comparison" for name in one.question.relevant}
    assert all(one.group == groups.get(name, one.group) for one in pairs for name in one.question.relevant)


def test_twins_ask_for_the_same_evidence():
    first, same, other = (
        question(name, "d", *span, name) for name, span in zip("abc", ((0, 9), (3, 9), (6, 9)), strict=True)
    )
    assert _twin(first, "fact", [first, other, same]).text == "b"
    assert _twin(first, "fact", [first, other]) is None
    section = question("s", "d", 0, 9, "Rome: History: Kings")
    assert _twin(section, "section", []).text == "What does the article about Rome say on History, Kings?"
    assert _known("<unk> ( poem )") == "( poem )" and _known("<unk> <unk> .") == ""


def mixed(num=120, seed=0):
    """Facts are found at level 4, sections at level 1; a third of the questions are test."""
    rng = np.random.default_rng(seed)
    kinds = np.array(["fact", "section"] * (num // 2))
    columns = ways(NAMES)
    recall = np.full((num, len(columns)), 0.1)
    recall[kinds == "fact", columns.index("plain 4:4")] = 0.9
    recall[kinds == "section", columns.index("plain 1:1")] = 0.8
    texts = ["Who was it?" if kind == "fact" else "Rome: Kings" for kind in kinds]
    vectors = rng.normal(size=(num, 8)) + 2 * (kinds == "fact")[:, None]
    groups = np.array([f"d{i // 4}" for i in range(num)])
    known = np.arange(num) % 12 < 8
    return Mixed(NAMES, kinds, groups, known, recall, vectors, surface_features(texts), rng.normal(size=(num, 3)))


def test_the_kind_is_worth_what_its_levels_differ_and_the_classifiers_keep_it():
    given = mixed()
    rows, where = rows_of(given), np.flatnonzero(~given.known)
    worth = {name: given.recall[where, column[where]].mean() for name, column in rows.items()}
    assert worth["dev"] == worth["fixed 64"] == pytest.approx(0.5) and worth["fixed 512"] == pytest.approx(0.45)
    assert worth["kind"] == worth["bound"] == pytest.approx(0.85)
    for name in ("classifier", "classifier surface", "classifier ranges", "regression", "router vectors"):
        assert worth[name] > 0.8, name


def test_nothing_of_test_chooses():
    given, turned = mixed(), mixed()
    turned.recall[~turned.known] = np.random.default_rng(1).random(turned.recall[~turned.known].shape)
    turned.kinds[~turned.known] = "fact"
    first, second = rows_of(given), rows_of(turned)
    for name in set(first) - {"bound", "kind", "smoothed by kind"}:
        assert (first[name] == second[name]).all(), name
    assert best(given, given.alone, given.known) == given.alone[3]
    assert (classified(given, given.surface) == given.kinds).all()
    told = np.array(["section"] * len(given.kinds))
    assert set(by_kind(given, given.alone, told).tolist()) == {given.alone[0]}


def test_records_hold_prompts_and_plans_that_read_back():
    given = mixed()
    asked = [
        Asked(question(f"q{i}", "d", 0, 9, "Rome: Kings"), kind, "train" if known else "test", group)
        for i, (kind, known, group) in enumerate(zip(given.kinds, given.known, given.groups, strict=True))
    ]

    class Known:
        names = NAMES

    kept = {"recall": np.repeat(given.recall[:, :, None], len(BUDGETS), axis=2)}
    built = [300.0 * (int(name.split()[1].split(":")[-1]) - int(name.split()[1][0]) + 1) for name in ways(NAMES)]
    kept |= {"built": np.array(built), "sent": np.ones_like(kept["recall"]) * BUDGETS}
    kept |= {"questions": given.vectors, "profiles": given.profiles}
    records = planning_records(Study(Known, asked, kept), ("fact", "section"), 1024)
    assert len(records) == len(asked)
    for record in records:
        levels = parse_plan(record["answer"], record["names"])
        assert [levels.least, levels.most] == record["label"] == ([3, 3] if record["kind"] == "fact" else [0, 0])
        assert record["recalls"][format_levels(levels, NAMES[1:])] >= 0.8
        assert record["costs"][format_levels(levels, NAMES[1:])] == pytest.approx(
            (300 + 1024) / (1500 + 1024), abs=1e-4
        )
        for table in ("recalls", "costs"):
            assert record[table].keys() == {format_levels(one, NAMES[1:]) for one in all_ranges(NAMES[1:])}
        assert "Rome: Kings" in record["messages"][0]["content"]
        json.dumps(record, allow_nan=False)


def test_a_planned_range_gets_the_recall_of_its_way():
    given, names = mixed(), NAMES[1:]
    places = np.arange(len(given.kinds)) + 7
    where = np.flatnonzero(~given.known)
    plans = {place + 7: LevelRange(4, 4) if given.kinds[place] == "fact" else LevelRange(1, 1) for place in where}
    columns = _columns(given, places, where, plans)
    assert given.recall[where, columns[where]].mean() == pytest.approx(0.85)
    assert [ways(NAMES)[column] for column in columns[where][:2]] == ["plain 4:4", "plain 1:1"] and len(names) == 5


def test_a_new_decoder_reads_its_prompts_and_its_examples_teach_the_form_alone(tmp_path):
    names = list(NAMES[1:])
    messages = [{"role": "user", "content": "Which levels? Rome: Kings"}]
    records = [{"names": names, "messages": messages, "answer": 'A fact. {"least": "64", "most": "64"}'}] * 40
    drawn = [parse_plan(one["messages"][-1]["content"], names) for one in forms(records, 0)]
    assert len(drawn) == 40 and len(set(drawn)) > 5
    assert all(one["messages"][-1]["content"].startswith("A fact. {") for one in forms(records, 0))
    model = LocalGenerator(str(new_decoder(tmp_path / "blank", [messages[0]["content"]] * 20, 0)))
    (said,) = model.generate([[Message("user", "Rome?")]], sampling=Sampling(max_tokens=3))
    assert said.finish_reason in ("length", "stop") and said.error is None
    for method in METHODS:
        assert run_config(method, tmp_path, tmp_path, names, 0, smoke=True).data.levels == tuple(names)
