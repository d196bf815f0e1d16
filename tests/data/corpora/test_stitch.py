"""Joined documents: every part once, texts and labels at their new place."""

from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.stitch import named_rng, stitch
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.types import Document


def small_task(sizes, kind="documents", name="small"):
    """One document for each size, which has so many sentences; a question for each two neighbours."""
    texts = [" ".join(f"Word {i} of {number}." for i in range(size)) for number, size in enumerate(sizes)]
    documents = tuple(Document(f"d{number}", text) for number, text in enumerate(texts))
    questions = []
    for number, text in enumerate(texts):
        evidence = (Evidence(f"d{number}", *split_sentences(text)[-1]),) if kind == "evidence" else ()
        relevant = tuple({f"d{number}": 0, f"d{(number + 1) % len(texts)}": 0})
        questions.append(StudyQuestion(f"q{number}", f"What is {number}?", relevant, evidence, (str(number),)))
    units = {document.id: split_sentences(document.text) for document in documents} if kind == "evidence" else {}
    return StudyTask(name, kind, documents, tuple(questions), units, {"why": 2})


def test_two_documents_by_hand():
    task = small_task([2, 1], "evidence")
    stitched = stitch(task, 3, 0, split_sentences)
    (joined,) = stitched.documents
    parts = joined.metadata["parts"]
    first, second = ((0, 1), (1, 0))[parts[0][0] == "d1"]
    texts = [document.text for document in task.documents]
    assert joined.text == f"{texts[first]} {texts[second]}"
    assert parts == (
        (f"d{first}", 0, len(texts[first])),
        (f"d{second}", len(texts[first]) + 1, len(joined.text)),
    )
    assert [question.relevant for question in stitched.questions] == [(joined.id,), (joined.id,)]
    assert list(stitched.sentences[joined.id]) == split_sentences(joined.text)
    assert stitched.left_out == {"why": 2}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(1, 12), st.integers(0, 3))
def test_every_part_once_and_every_label_at_its_text(sizes, enough, seed):
    task = small_task(sizes, "evidence")
    stitched = stitch(task, enough, seed, split_sentences)
    old = {document.id: document.text for document in task.documents}
    new = {document.id: document.text for document in stitched.documents}
    parts = [(document.id, part) for document in stitched.documents for part in document.metadata["parts"]]
    assert sorted(name for _, (name, _, _) in parts) == sorted(old)
    for document, (name, start, end) in parts:
        assert new[document][start:end] == old[name]
    counts = [len(split_sentences(text)) for text in new.values()]
    assert all(count >= enough for count in counts[:-1])
    assert sum(counts) == sum(sizes)
    # Without its last part a joined document would have too few.
    for document in stitched.documents:
        _, _, end = document.metadata["parts"][-2] if len(document.metadata["parts"]) > 1 else (0, 0, 0)
        assert len(split_sentences(document.text[:end])) < enough
    home = {name: document for document, (name, _, _) in parts}
    for before, after in zip(task.questions, stitched.questions, strict=True):
        assert (after.id, after.text, after.answers) == (before.id, before.text, before.answers)
        assert after.relevant == tuple(dict.fromkeys(home[name] for name in before.relevant))
        for one, other in zip(before.evidence, after.evidence, strict=True):
            assert other.document_id == home[one.document_id]
            assert old[one.document_id][one.start : one.end] == new[other.document_id][other.start : other.end]
    for name, spans in stitched.sentences.items():
        assert list(spans) == split_sentences(new[name])


def test_seed_and_name_make_the_order():
    def order(seed, name="small"):
        task = stitch(small_task([1] * 30, name=name), 1000, seed, split_sentences)
        return [part[0] for part in task.documents[0].metadata["parts"]]

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert order(0) != order(0, "other")
    assert order(0) != [f"d{i}" for i in range(30)]


def test_white_space_at_the_ends_stays_where_offsets_count_it():
    task = StudyTask(
        "t",
        "evidence",
        (Document("a", " \n One. \n"), Document("b", "Two.\n")),
        (StudyQuestion("q", "?", ("a", "b"), (Evidence("a", 3, 7), Evidence("b", 0, 4))),),
        {"a": [(3, 7)], "b": [(0, 4)]},
    )
    stitched = stitch(task, 9, 5, split_sentences)
    text = stitched.documents[0].text
    assert [text[piece.start : piece.end] for piece in stitched.questions[0].evidence] == ["One.", "Two."]


def test_streams_of_random_numbers():
    draws = [named_rng(*names).integers(1 << 60) for names in ((0, "a"), (1, "a"), (0, "b"), (0, "a", "b"), (-1, "a"))]
    assert len(set(draws)) == 5
    assert named_rng(0, "a").integers(1 << 60) == draws[0]
