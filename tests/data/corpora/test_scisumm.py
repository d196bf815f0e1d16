"""CL-SciSumm papers as Markdown and citances as questions, from papers written by hand."""

import copy
import gzip
import json

import pytest

from qrag_jax.chunking.strategies.headings import find_sections
from qrag_jax.data.corpora import scisumm
from qrag_jax.data.corpora.scisumm import read_scisumm
from qrag_jax.data.corpora.study_task import Evidence
from qrag_jax.types import InputError

PAPERS = [
    {
        "id": "A00-1",
        "title": "Mills  of Belm",
        "sections": [
            {"title": "Abstract", "number": None, "sentences": [["1", "Mills grind."], ["2", " Rye\nis ground."]]},
            {"title": "1 Wheels", "number": "1", "sentences": [["3", "# of wheels is odd."], ["", "Or even."]]},
            {"title": " ", "number": "2", "sentences": [["", "Some are wood."]]},
            {"title": "Thanks", "number": "3", "sentences": []},
        ],
    },
    {"id": "B00-2", "title": None, "sections": [{"title": "Abstract", "sentences": [["1", "Boats sail."]]}]},
]
CITANCES = [
    {"ref": "A00-1", "citance": "Mills grind (Ada, 2000).", "ref_sids": ["2", "1", "2"], "sids_valid": True},
    {"ref": "B00-2", "citance": "Boats (Fen, 2000) sail.", "ref_sids": ["1"]},
    {"ref": "A00-1", "citance": "Mills grind (Ada, 2000).", "ref_sids": ["0", "3"], "sids_valid": True},
]
TEXT = (
    "# Mills of Belm\n\n## Abstract\n\nMills grind. Rye is ground.\n\n## 1 Wheels\n\n"
    "\\# of wheels is odd. Or even.\n\nSome are wood.\n\n## Thanks"
)


def _packed(rows):
    return gzip.compress("\n".join(json.dumps(row) for row in rows).encode())


def _written(folder, papers, citances=None):
    (folder / "cited_papers.jsonl.gz").write_bytes(_packed(papers))
    (folder / "citances.jsonl.gz").write_bytes(_packed(CITANCES if citances is None else citances))
    return folder


def _said(task, spans):
    texts = {document.id: document.text for document in task.documents}
    return [texts[name][start:end] for name, start, end in spans]


def test_papers_become_markdown_with_the_data_sets_sentences(tmp_path):
    task = read_scisumm(_written(tmp_path, PAPERS), "scisumm")
    assert [(document.id, document.text) for document in task.documents] == [
        ("A00-1", TEXT),
        ("B00-2", "## Abstract\n\nBoats sail."),
    ]
    assert _said(task, [("A00-1", *span) for span in task.sentences["A00-1"]]) == [
        "Mills of Belm",
        "Mills grind.",
        "Rye is ground.",
        "# of wheels is odd.",
        "Or even.",
        "Some are wood.",
    ]
    assert task.sentences["B00-2"] == ((13, 24),)


def test_citances_become_questions(tmp_path):
    task = read_scisumm(_written(tmp_path, PAPERS), "scisumm")
    assert [(question.id, question.relevant) for question in task.questions] == [
        ("A00-1.1", ("A00-1",)),
        ("B00-2.2", ("B00-2",)),
    ]
    said = [_said(task, [(e.document_id, e.start, e.end) for e in question.evidence]) for question in task.questions]
    both = ["Mills of Belm", "Mills grind.", "Rye is ground.", "# of wheels is odd."]  # labelled twice
    assert said == [both, ["Boats sail."]]
    assert task.questions[1].evidence == (Evidence("B00-2", 13, 24),)
    assert task.kind == "evidence" and not task.left_out


@pytest.mark.parametrize(
    "first", ["# of it", "###### 1", "#", "``` code", "~~~", "<!-- open", "<pre> x", "1. one", "> a"]
)
def test_the_headings_chunker_finds_the_sections_whatever_they_begin_with(tmp_path, first):
    papers = copy.deepcopy(PAPERS)
    papers[0]["sections"][0]["sentences"][0][1] = first
    papers[0]["sections"][1]["sentences"][0][1] = "Wheels turn."
    task = read_scisumm(_written(tmp_path, papers), "scisumm")
    text = task.documents[0].text
    sections = find_sections(text)
    titles = [text[section.title_span[0] : section.title_span[1]] for section in sections if section.title_span]
    assert titles == ["Mills of Belm", "Abstract", "1 Wheels", "Thanks"]
    assert [section.level for section in sections] == [1, 2, 2, 2]
    assert text[slice(*task.sentences["A00-1"][1])] == first


def test_citances_that_cannot_be_posed_are_counted(tmp_path):
    wrong = [
        {"sids_valid": False},
        {"ref_sids": []},
        {"ref_sids": ["1", "99"]},
        {"ref_sids": [""]},
        {"ref": "C00-3"},
        {"ref": "B00-2", "ref_sids": ["0"]},  # this paper has no title
        {"citance": " "},
    ]
    task = read_scisumm(_written(tmp_path, PAPERS, [*CITANCES, *({**CITANCES[0], **row} for row in wrong)]), "scisumm")
    assert task.left_out == {
        scisumm.NOT_VALID: 1,
        scisumm.NO_LABEL: 1,
        scisumm.UNKNOWN_SENTENCE: 3,
        scisumm.UNKNOWN_PAPER: 1,
        scisumm.EMPTY_QUESTION: 1,
    }
    assert task.questions == read_scisumm(_written(tmp_path, PAPERS), "scisumm").questions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, c: p[1].update(sections=[]), ":2: the paper has no title and no sentence"),
        (lambda p, c: p[1]["sections"][0]["sentences"].append(["1", "a"]), ":2: sentence id '1' occurs twice"),
        (lambda p, c: p[1]["sections"].__setitem__(0, {"title": "T", "sentences": []}), "document B00-2: has no sent"),
    ],
)
def test_broken_lines_are_refused_with_their_place(tmp_path, change, message):
    papers, citances = copy.deepcopy(PAPERS), copy.deepcopy(CITANCES)
    change(papers, citances)
    with pytest.raises(InputError, match=message):
        read_scisumm(_written(tmp_path, papers, citances), "scisumm")
