"""Views of headed documents: gold points, paths, and that nothing tells where a heading was."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.chunking.text.chunks import check_sentences
from qrag_jax.chunking.tree.boundaries import checked_points, heading_points, paragraph_points, rule_points
from qrag_jax.data.corpora.headed_documents import read_headed, view_of
from qrag_jax.data.corpora.section_readers import Heading, Passage, Sectioned, markdown_parts
from qrag_jax.names import VIEWS
from qrag_jax.types import Document, InputError, UsageError

BOOK = (
    "# Book\n\nAbout. It all.\n\n## One\n\nOne is.\n\nMore of it.\n\n---\n\n#### Deep\nText. Words.\n\n## Bare\n"
    "### Sub\n\nLast one.\n\n## End\n"
)


@pytest.fixture
def book(tmp_path):
    file = tmp_path / "book.md"
    file.write_text(BOOK)
    return str(file)


def test_headings_kept(book):
    (found,) = read_headed(book, "kept")
    assert found.id == book
    assert found.text.texts() == [
        "# Book", "About.", "It all.", "## One", "One is.", "More of it.", "---", "#### Deep", "Text.", "Words.",
        "## Bare", "### Sub", "Last one.", "## End",
    ]  # fmt: skip
    assert found.points == ((3, 1), (7, 2), (10, 1), (11, 2), (13, 1))
    assert found.paths == (("One",), ("One", "Deep"), ("Bare",), ("Bare", "Sub"), ("End",))
    assert heading_points([found.text]) == [list(found.points)]


def test_headings_as_plain_lines(book):
    (kept,), (plain,) = read_headed(book, "kept"), read_headed(book, "plain")
    assert (plain.points, plain.paths) == (kept.points, kept.paths)
    assert plain.text.texts() == [re.sub("^#+ ", "", unit) for unit in kept.text.texts()]
    assert "\n\nOne\n\nOne is." in plain.text.text
    found = {point for point, _ in rule_points([plain.text])[0]}
    assert {sentence for sentence, _ in plain.points} <= found and heading_points([plain.text]) == [[]]


def test_headings_removed(book):
    (found,) = read_headed(book)
    assert found.text.text == "About. It all.\n\nOne is.\n\nMore of it.\n\nText. Words.\n\nLast one."
    # the level of "Bare" goes on to the text under "Sub"; under "End" there is none
    assert found.points == ((2, 1), (4, 2), (6, 1))
    assert found.paths == (("One",), ("One", "Deep"), ("Bare",))
    assert rule_points([found.text]) == heading_points([found.text]) == [[]]


def test_of_several_headings_the_least_level_counts_and_its_last_title():
    text = "Text.\n\n# A\n\n### B\n\n# C\n\n## D\n\nMore."
    found = view_of(markdown_parts(Document("a.md", text)), "removed")
    assert found.points == ((1, 1),) and found.paths == (("C",),)


def passages(sizes):
    return [Passage(" ".join(["It is."] * size), tuple((7 * i, 7 * i + 6) for i in range(size))) for size in sizes]


documents = st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(1, 3), max_size=3)), min_size=1, max_size=5).map(
    lambda sections: Sectioned(
        "doc",
        tuple(
            part
            for number, (level, sizes) in enumerate(sections)
            for part in (Heading(level, f"T{number}", f"# T{number}"), *passages(sizes))
        ),
    )
)


@given(documents, st.sampled_from(VIEWS))
@examples(100)
def test_every_view_is_a_text_with_points(document, view):
    found = view_of(document, view)
    if found is None:
        assert view == "removed" and all(isinstance(part, Heading) for part in document.parts)
        return
    check_sentences(found.text)
    assert checked_points(found.points, len(found.text), "doc") == list(found.points)
    assert len(found.points) == len(found.paths)
    if view != "removed":
        assert len(found.points) == sum(isinstance(part, Heading) for part in document.parts)
        assert all(found.text.texts()[unit].removeprefix("# ") == path[-1] for (unit, _), path in
                   zip(found.points, found.paths, strict=True))  # fmt: skip


@given(documents)
@examples(100)
def test_no_gap_tells_where_a_heading_was(document):
    found = view_of(document, "removed")
    if found is None:
        return
    assert not re.search(r"T\d|#", found.text.text)
    sizes = [len(part.units) for part in document.parts if isinstance(part, Passage)]
    gaps = re.findall(r"(?<=\.)\s+", found.text.text)
    inside = [document.parts[i : i + 2] for i in range(len(document.parts) - 1)]
    has_paragraphs = any(all(isinstance(part, Passage) for part in pair) for pair in inside)
    # Either every passage begins behind a blank line, with a heading before it or without, or none does.
    assert gaps.count("\n\n") == (len(sizes) - 1 if has_paragraphs else 0)
    assert set(gaps) <= {"\n\n", " "}


def test_papers_have_no_paragraphs_and_no_gap_at_sections(tmp_path):
    sections = [{"title": f"{i} S", "sentences": [["1", "We do."], ["2", "It is."]]} for i in range(3)]
    rows = [{"id": "P", "title": "T", "sections": [*sections, {"title": "", "sentences": [["9", "On."]]}]}]
    file = tmp_path / "papers.jsonl"
    file.write_text("".join(json.dumps(row | {"sections": row["sections"]}) + "\n" for row in rows))
    (found,) = read_headed(f"scisumm:{file}")
    assert found.text.text == "We do. It is. We do. It is. We do. It is. On."
    assert found.points == ((0, 1), (2, 1), (4, 1))
    assert paragraph_points([found.text]) == [[]]
    (plain,) = read_headed(f"scisumm:{file}", "plain")
    assert plain.text.text.startswith("T\n\n0 S\n\nWe do. It is.\n\n1 S")


def test_articles_keep_their_paragraphs(tmp_path):
    file = tmp_path / "wiki.tokens"
    file.write_text(" = T = \n One . \n Two . \n = = A = = \n Three . \n")
    (found,) = read_headed(f"wikitext2:{file}")
    assert found.text.text == "One .\n\nTwo .\n\nThree ." and found.points == ((2, 1),)


def test_documents_without_a_section_are_left_out_and_counted(tmp_path):
    for name, text in (("a", "# Title\n\nText."), ("b", BOOK), ("c", "Plain."), ("d", "Text.\n\n# No text under it")):
        (tmp_path / f"{name}.md").write_text(text)
    for view in VIEWS:
        with pytest.warns(UserWarning, match=r"3 documents without a section are left out: .*a\.md, .*c\.md, .*d\.md$"):
            assert [one.id for one in read_headed(str(tmp_path), view)] == [str(tmp_path / "b.md")]
    with pytest.raises(InputError, match=r"a\.md: no heading with text under it: leave this document out"):
        read_headed(str(tmp_path), strict=True)


def test_a_document_that_is_there_twice_counts_once(tmp_path):
    for name, text in (("a", BOOK), ("b", BOOK.replace("More", "Less")), ("c", BOOK)):
        (tmp_path / f"{name}.md").write_text(text)
    folder, one = str(tmp_path), str(tmp_path / "a.md")
    for view in VIEWS:
        with pytest.warns(UserWarning) as told:
            found = read_headed([folder, one], view)
        assert [document.id[-4:] for document in found] == ["a.md", "b.md"]
        assert [str(each.message).partition(":")[2] for each in told] == [
            f" 1 documents that repeat another one are left out: {tmp_path / 'c.md'} (as {one})",
            f" 1 documents that repeat another one are left out: {one} (as {one})",
        ]
    with pytest.raises(InputError, match=r"c\.md: the same document as .*a\.md: leave one of them out"):
        read_headed(folder, strict=True)


def test_nothing_to_learn_from_is_refused(tmp_path):
    (tmp_path / "a.md").write_text("Text.")
    with pytest.raises(InputError, match=r"a\.md: none of 1 documents has a heading with text under it"):
        read_headed(str(tmp_path / "a.md"))
    (tmp_path / "b.md").write_text(" \n")
    with pytest.raises(InputError, match="empty document"):
        read_headed(str(tmp_path / "b.md"))
    with pytest.raises(UsageError, match="view 'bare': choose one of kept, plain, removed"):
        read_headed.__wrapped__(str(tmp_path / "a.md"), "bare")  # without the check of types
    with pytest.raises(UsageError):
        read_headed(str(tmp_path / "nothing.md"))
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        read_headed(f"scisumm:{tmp_path}")
