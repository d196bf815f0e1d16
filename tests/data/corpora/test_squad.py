"""SQuAD articles as long documents, in both layouts, from articles written by hand."""

import copy
import gzip
import json

import pytest

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.squad import ANSWER_NOT_AT_PLACE, EMPTY_QUESTION, NO_ANSWER, read_squad
from qrag_jax.data.corpora.study_task import Evidence
from qrag_jax.types import InputError

FIRST = " The Oru is a river. It rises in Belm. Boats go up to Cairn. "
SECOND = "Dun is a town. Rye grows there."


def _answer(context, text):
    return {"answer_start": context.index(text), "text": text}


def _asked(name, context, *texts, question="What?"):
    return {"id": name, "question": question, "answers": [_answer(context, text) for text in texts]}


OTHER = "Fen is wet."
ARTICLES = [
    {
        "title": "Oru_(river)",
        "paragraphs": [
            {
                "context": FIRST,
                "qas": [
                    _asked("q1", FIRST, "Belm", "Cairn", "Cairn"),
                    _asked("q2", FIRST, "Belm. Boats", "a river"),
                ],
            },
            {"context": SECOND, "qas": [_asked("q3", SECOND, "Rye")]},
        ],
    },
    {"title": "Fen", "paragraphs": [{"context": OTHER, "qas": [_asked("q4", OTHER, "wet", question="How is Fen?")]}]},
]


def _written(folder, articles):
    path = folder / "articles.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(article) for article in articles).encode()))
    return path


def _said(task):
    """Question id -> the texts of its evidence."""
    texts = {document.id: document.text for document in task.documents}
    return {
        question.id: [texts[part.document_id][part.start : part.end] for part in question.evidence]
        for question in task.questions
    }


def test_articles_become_documents_and_answers_the_sentences_that_hold_them(tmp_path):
    task = read_squad(_written(tmp_path, ARTICLES), "squad")
    assert [(document.id, document.text) for document in task.documents] == [
        ("Oru_(river)", FIRST.strip() + "\n\n" + SECOND),
        ("Fen", OTHER),
    ]
    assert _said(task) == {
        "q1": ["Boats go up to Cairn."],  # two of three annotators
        "q2": ["It rises in Belm.", "Boats go up to Cairn."],  # both once: the first, which lies in two sentences
        "q3": ["Rye grows there."],
        "q4": ["Fen is wet."],
    }
    assert task.questions[0].answers == ("Belm", "Cairn")
    assert task.questions[0].relevant == ("Oru_(river)",)
    assert task.questions[3].evidence == (Evidence("Fen", 0, 11),)
    assert task.kind == "evidence" and not task.left_out
    assert task.sentences == {document.id: split_sentences(document.text) for document in task.documents}


def test_all_layouts_and_places_say_the_same(tmp_path):
    path = _written(tmp_path, ARTICLES)
    published = tmp_path / "published"
    published.mkdir()
    (published / "dev-v1.1.json").write_text(json.dumps({"data": ARTICLES, "version": "1.1"}, indent=1))
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "articles.jsonl").write_bytes(gzip.decompress(path.read_bytes()))
    tasks = [read_squad(place, "squad") for place in (path, tmp_path, published, published / "dev-v1.1.json", plain)]
    assert all(task == tasks[0] for task in tasks)


def test_evidence_holds_every_character_of_the_answer_wherever_it_stands(tmp_path):
    """A question about each word of the first paragraph, against a search by characters."""
    words = FIRST.split()
    articles = copy.deepcopy(ARTICLES[:1])
    qas = []
    place = 0
    for number, word in enumerate(words):
        place = FIRST.index(word, place)
        qas.append({"id": f"w{number}", "question": "?", "answers": [{"answer_start": place, "text": word}]})
    articles[0]["paragraphs"][0]["qas"] = qas
    articles[0]["paragraphs"][1]["qas"] = []
    task = read_squad(_written(tmp_path, articles), "squad")
    text = task.documents[0].text
    for question, row in zip(task.questions, qas, strict=True):
        start = row["answers"][0]["answer_start"] - 1  # the blank before the paragraph is dropped
        [sentence] = [span for span in task.sentences["Oru_(river)"] if span[0] <= start < span[1]]
        assert [(part.start, part.end) for part in question.evidence] == [sentence]
        assert text[start:].startswith(question.answers[0])


def test_splitter_decides_on_evidence(tmp_path):
    task = read_squad(_written(tmp_path, ARTICLES), "squad", lambda text: [(0, len(text))])
    assert _said(task)["q3"] == [task.documents[0].text]


def test_questions_that_cannot_be_posed_are_counted(tmp_path):
    articles = copy.deepcopy(ARTICLES)
    first = articles[0]["paragraphs"][0]["qas"]
    first[0]["answers"][1]["answer_start"] -= 1  # one of three annotations: the others still say where
    first[1]["answers"] = [{"answer_start": 0, "text": "nowhere"}, {"answer_start": -5, "text": "Cairn"}]
    articles[0]["paragraphs"][1]["qas"] = [
        {"id": "v2", "question": "Is it?", "answers": [], "is_impossible": True},
        {"id": "blank", "question": " ", "answers": [{"answer_start": 0, "text": "Dun"}]},
        {"id": "empty", "question": "Who?", "answers": [{"answer_start": 3, "text": ""}]},
    ]
    task = read_squad(_written(tmp_path, articles), "squad")
    assert task.left_out == {ANSWER_NOT_AT_PLACE: 2, NO_ANSWER: 1, EMPTY_QUESTION: 1}
    assert _said(task) == {"q1": ["It rises in Belm."], "q4": ["Fen is wet."]}
    assert task.questions[0].answers == ("Belm", "Cairn")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a[1].update(paragraphs=[]), ":2: paragraphs is empty"),
        (
            lambda a: a[0]["paragraphs"][1]["qas"][0].update(id="q1"),
            r"paragraphs\[1\] qas\[0\]: id 'q1' was used before",
        ),
    ],
)
def test_broken_articles_are_refused_with_their_place(tmp_path, change, message):
    articles = copy.deepcopy(ARTICLES)
    change(articles)
    with pytest.raises(InputError, match=message):
        read_squad(_written(tmp_path, articles), "squad")


def test_broken_files_are_refused(tmp_path):
    path = tmp_path / "dev-v1.1.json"
    for text, message in (
        ("[]", "dev-v1.1.json: expected a JSON object, got list"),
        ('{"data": []}', "squad: 0 documents and 0 questions"),
        ('{"data": [{"title": ""}]}', r"dev-v1.1.json: data\[0\]: title must be a text that is not empty"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_squad(path, "squad")


def test_broken_characters_move_no_answer(tmp_path):
    context = "Half \ud83d, then Dun."
    article = {"title": "T", "paragraphs": [{"context": context, "qas": [_asked("q", context, "\ud83d, then", "Dun")]}]}
    task = read_squad(_written(tmp_path, [article]), "squad")
    assert task.documents[0].text == "Half \ufffd, then Dun."
    assert task.questions[0].answers == ("\ufffd, then", "Dun")
