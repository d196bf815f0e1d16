"""Every reader of rows against fields that are missing, null, blank or of another kind, and against bad files."""

import copy
import gzip
import json

import pytest
from trust.data_readers import QUESTIONS, SETS

from qrag_jax.types import InputError, UsageError

# Reader -> its files -> paths of their first row; "?": it may be missing or null. `*`: in a folder, so packed too.
ROWS = {
    "SQuAD .jsonl": {
        "articles.jsonl*": "title paragraphs paragraphs.0.context paragraphs.0.qas paragraphs.0.qas.0.id "
        "paragraphs.0.qas.0.question paragraphs.0.qas.0.answers paragraphs.0.qas.0.answers.0.answer_start "
        "paragraphs.0.qas.0.answers.0.text"
    },
    "MultiRC": {
        "evidence.jsonl*": "doc_id sentences sentences.1 questions questions.0.question questions.0.evidence_sets "
        "questions.0.evidence_sets.0 questions.0.evidence_sets.0.0"
    },
    "CL-SciSumm": {
        "cited_papers.jsonl*": "id title? sections sections.0.title? sections.0.sentences sections.0.sentences.0 "
        "sections.0.sentences.0.0 sections.0.sentences.0.1",
        "citances.jsonl*": "ref citance ref_sids ref_sids.0 sids_valid?",
    },
    "WikiText-2, sections": {"articles.jsonl*": "title items items.0.text items.1.heading? items.1.level"},
    "BEIR": {"corpus.jsonl*": "_id title? text?", "queries.jsonl*": "_id text", "qrels/test.tsv*": ""},
    "Cranfield": {"cran.all.1400.xml*": "", "cran.qry.xml*": "", "cranqrel.trec.txt*": ""},
    "Chroma": {"questions.jsonl*": "question references corpus_id"},
    "Chroma .csv": {"a.csv": ""},
    "ConditionalQA": {
        "documents.json*": "url title? contents? contents.0?",
        "dev.json*": "id? url scenario? question answers? answers.0 evidences? evidences.0",
    },
    "FinanceBench": {
        "pages.jsonl*": "doc_name pages? pages.0?",
        "questions.jsonl*": "financebench_id question answer? evidence? evidence.0 evidence.0.evidence_text "
        "evidence.0.evidence_page_num evidence.0.doc_name?",
    },
    "own files and questions": {"q.jsonl": "question evidence?"},
    "questions .jsonl": {"a.jsonl": "question chunks chunks.1 gold gold.0 id? answer?"},
    "HotpotQA": {
        "a.json": "_id? question context context.0 context.0.0? context.0.1 context.0.1.0 supporting_facts "
        "supporting_facts.0 supporting_facts.0.0"
    },
    "MuSiQue": {
        "a.jsonl": "id? question answerable? answer_aliases? paragraphs paragraphs.0 paragraphs.0.title? "
        "paragraphs.0.paragraph_text paragraphs.0.is_supporting paragraphs.1.idx? question_decomposition? "
        "question_decomposition.0.paragraph_support_idx?"
    },
    "task over vectors": {"episodes.jsonl": "question gold gold.0"},
    "bAbI": {"qa.txt": ""},
}
READERS = {reader.name: reader for reader in (*QUESTIONS, *SETS)}
FILES = [(reader, name.rstrip("*"), name.endswith("*")) for reader, files in ROWS.items() for name in files]
PATHS = [
    pytest.param(reader, name.rstrip("*"), path.rstrip("?"), path.endswith("?"), id=f"{reader}: {path}")
    for reader, files in ROWS.items()
    for name, paths in files.items()
    for path in paths.split()
]
MISSING = object()


def changed(content, name, path, value):
    """The content of a file with another value, or none, at a path of its first row."""
    rows = json.loads(content) if name.endswith(".json") else list(map(json.loads, content.splitlines()))
    *above, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place = rows[0]
    for step in above:
        place = place[step]
    kind = type(place[last])
    if value is MISSING and isinstance(last, str):
        del place[last]
    else:
        place[last] = None if value is MISSING else copy.deepcopy(value)
    return json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows)), kind


def field_of(path):
    return next(step for step in reversed(path.split(".")) if not step.isdigit())


@pytest.mark.parametrize(("reader", "name", "path", "is_optional"), PATHS)
def test_a_wrong_field_is_refused_by_its_file_and_name(tmp_path, reader, name, path, is_optional):
    READERS[reader].make(tmp_path)
    whole = (tmp_path / name).read_text()
    _, kind = changed(whole, name, path, None)
    wrong = 3 if kind in (list, dict) else [[1]]
    for value in (MISSING, None, wrong, True if kind is int else wrong):
        (tmp_path / name).write_text(changed(whole, name, path, value)[0])
        if is_optional and value in (MISSING, None):
            try:
                READERS[reader].read(tmp_path)
            except InputError:
                pass
            continue
        with pytest.raises(InputError) as caught:
            READERS[reader].read(tmp_path)
        assert name in str(caught.value) and field_of(path) in str(caught.value)


@pytest.mark.parametrize(("reader", "name", "is_packed"), FILES)
def test_files_that_are_none_are_refused_and_packed_ones_are_read(tmp_path, reader, name, is_packed):
    READERS[reader].make(tmp_path)
    path, read = tmp_path / name, lambda: READERS[reader].read(tmp_path)
    whole, expected = path.read_bytes(), read()
    for content in (b"\xff", b'{"a": ', b"[1]", b""):
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read()
        assert path.name in str(caught.value)
    path.unlink()
    with pytest.raises(UsageError) as caught:
        read()
    assert path.name.removesuffix(".jsonl") in str(caught.value)
    if is_packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(whole))
        assert read() == expected


UNIQUE = {
    "SQuAD .jsonl": "articles.jsonl",
    "MultiRC": "evidence.jsonl",
    "CL-SciSumm": "cited_papers.jsonl",
    "BEIR": "corpus.jsonl",
    "ConditionalQA": "documents.json",
    "FinanceBench": "pages.jsonl",
    "questions .jsonl": "a.jsonl",
    "HotpotQA": "a.json",
    "MuSiQue": "a.jsonl",
}


@pytest.mark.parametrize("reader", UNIQUE)
def test_a_row_that_is_there_twice_is_refused(tmp_path, reader):
    READERS[reader].make(tmp_path)
    path = tmp_path / UNIQUE[reader]
    if path.suffix == ".json":
        rows = json.loads(path.read_text())
        path.write_text(json.dumps([*rows, rows[0]]))
    else:
        path.write_text(f"{path.read_text()}\n{path.read_text().splitlines()[0]}")
    with pytest.raises(InputError) as caught:
        READERS[reader].read(tmp_path)
    assert path.name in str(caught.value)
