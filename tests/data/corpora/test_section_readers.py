"""Readers of documents as headings and passages."""

import gzip
import json

import pytest

from qrag_jax.data.corpora.section_readers import (
    Heading,
    Passage,
    markdown_parts,
    read_markdown,
    read_scisumm,
    read_wikitext2,
)
from qrag_jax.types import Document, InputError, UsageError


def outline(document):
    """Level and words of headings, units of passages; marks in brackets."""
    shown = []
    for part in document.parts:
        if isinstance(part, Heading):
            shown.append((part.level, part.title))
        else:
            units = [part.text[start:end] for start, end in part.units]
            shown.append([units] if part.is_mark else units)
    return shown


def parts_of(text):
    return outline(markdown_parts(Document("a.md", text)))


def test_blocks_of_markdown():
    text = (
        "---\ntitle: T\n---\n# Title #\nOne. Two.\n\n- item. still\n- other\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```\n# no heading\n```\n\nUnder  line\n----------\n\n> quoted. Words.\n"
    )
    assert parts_of(text) == [
        ["---\ntitle: T\n---"],
        (0, "Title"),
        ["One.", "Two."],
        ["- item. still", "- other"],
        ["| a | b |\n|---|---|", "| 1 | 2 |"],
        ["```", "# no heading", "```"],
        (1, "Under line"),
        ["> quoted.", "Words."],
    ]


def test_rules_anchors_and_headings_without_words_are_marks():
    text = '# T\n\nText.\n\n---\n\n<a name="s"></a>\n\n## A\n\n#\n\n<p>Words</p>\n'
    assert parts_of(text) == [
        (0, "T"),
        ["Text."],
        [["---"]],
        [['<a name="s"></a>']],
        (1, "A"),
        [["#"]],
        ["<p>Words</p>"],
    ]


def test_a_title_behind_a_mark_is_one():
    assert parts_of("<!-- made by hand -->\n\n# T\n\n## A\n\nText.")[1:] == [(0, "T"), (1, "A"), ["Text."]]
    assert parts_of("Text.\n\n# T\n\n## A")[1:] == [(1, "T"), (2, "A")]


def test_skipped_levels_and_numbers():
    assert [part[0] for part in parts_of("# A\n\n#### B\n\n## C\n\n# D") if part] == [1, 2, 2, 1]
    assert [part[0] for part in parts_of("## 1 A\n\n## 1.1 B\n\n## 2. C\n\n## Thanks")] == [1, 2, 1, 1]


def test_what_is_written_stays_what_it_is():
    document = markdown_parts(Document("a.md", "Over\r\n===\r\n\r\n##  A **b** ##\r\nLine one\r\nline two.\r\n"))
    assert [part.written if isinstance(part, Heading) else part.text for part in document.parts] == [
        "Over\r\n===",
        "##  A **b** ##",
        "Line one\r\nline two.",
    ]
    for part in document.parts:
        if isinstance(part, Passage):
            assert [part.text[start:end] for start, end in part.units] == ["Line one\r\nline two."]


def test_files_of_a_folder(tmp_path):
    (tmp_path / "b.md").write_text("# B\n\nText.")
    (tmp_path / "a.txt").write_text("Plain.")
    found = list(read_markdown(str(tmp_path)))
    assert [document.id for document in found] == [str(tmp_path / "a.txt"), str(tmp_path / "b.md")]
    assert outline(found[0]) == [["Plain."]]


ARTICLE = {
    "title": "Sea",
    "items": [
        {"text": " Water . It is wet . "},
        {"heading": "Kinds", "level": 2},
        {"heading": "Salt ", "level": 4},
        {"text": "Most of it ."},
    ],
}
READ = [(0, "Sea"), ["Water .", "It is wet ."], (1, "Kinds"), (2, "Salt"), ["Most of it ."]]


def test_articles_of_json_lines(tmp_path):
    file = tmp_path / "articles.jsonl.gz"
    file.write_bytes(gzip.compress((json.dumps(ARTICLE) + "\n").encode()))
    for path in (tmp_path, file):
        (found,) = read_wikitext2(str(path))
        assert found.id == "Sea" and outline(found) == READ
    assert [part.written for part in found.parts if isinstance(part, Heading)] == ["# Sea", "## Kinds", "#### Salt"]


def test_levels_of_any_size_are_written_as_markdown_can(tmp_path):
    file = tmp_path / "articles.jsonl"
    file.write_text(json.dumps(ARTICLE | {"items": [{"heading": "A", "level": 10**30}, {"text": "It is."}]}))
    (found,) = read_wikitext2(str(file))
    assert outline(found) == [(0, "Sea"), (1, "A"), ["It is."]] and found.parts[1].written == "###### A"


def test_articles_of_tokens(tmp_path):
    file = tmp_path / "wiki.valid.tokens"
    file.write_text(
        " \n = Sea = \n \n Water . It is wet . \n \n = = Kinds = = \n \n = = = = Salt = = = = \n Most of it . \n"
        " = Other = \n x = 1 = y \n"
    )
    first, second = read_wikitext2(str(file))
    assert outline(first) == READ and outline(second) == [(0, "Other"), ["x = 1 = y"]]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"title": " "}, r"articles\.jsonl:1: title must be a text that is not empty"),
        ({"items": [{"heading": "A", "level": 0}]}, r":1: items\[0\]: level 0: levels count from 1"),
        ({"items": [{"heading": "A"}]}, r"items\[0\]: level must be an integer"),
        ({"items": [{}]}, r"items\[0\]: text must be a text that is not empty"),
        ({"items": 3}, "items must be a list"),
    ],
)
def test_articles_that_are_none(tmp_path, change, message):
    file = tmp_path / "articles.jsonl"
    file.write_text(json.dumps(ARTICLE | change) + "\n")
    with pytest.raises(InputError, match=message):
        list(read_wikitext2(str(file)))


def test_tokens_before_a_title_and_no_file(tmp_path):
    file = tmp_path / "wiki.tokens"
    file.write_text("\n text . \n")
    with pytest.raises(InputError, match=r"wiki\.tokens:2: text before a line ` = Title = `"):
        list(read_wikitext2(str(file)))
    with pytest.raises(UsageError, match="neither a file nor a folder with articles.jsonl"):
        list(read_wikitext2(str(tmp_path)))


def paper(**fields):
    sections = [
        {"title": "Abstract", "sentences": [["1", "We do."], ["2", "It is  good."]]},
        {"title": "", "sentences": [["3", "Goes on."]]},
        {"title": "1 Method", "number": "1", "sentences": []},
        {"title": "1.1 Data", "number": "2", "sentences": [["4", "Ours."]]},
    ]
    return {"id": "P1", "title": "On it", "sections": sections} | fields


def test_papers(tmp_path):
    (tmp_path / "cited_papers.jsonl").write_text(json.dumps(paper()) + "\n")
    (tmp_path / "other_papers.jsonl").write_text(json.dumps(paper(id="P2", title="")) + "\n")
    first, second = read_scisumm(str(tmp_path))
    sections = [(1, "Abstract"), ["We do.", "It is good.", "Goes on."], (1, "1 Method"), (2, "1.1 Data"), ["Ours."]]
    assert (first.id, outline(first)) == ("P1", [(0, "On it"), *sections])
    assert (second.id, outline(second)) == ("P2", sections)
    assert [one.id for one in read_scisumm(str(tmp_path / "other_papers.jsonl"))] == ["P2"]


def test_a_paper_with_one_section_and_no_title_has_a_section(tmp_path):
    file = tmp_path / "papers.jsonl"
    file.write_text(json.dumps(paper(title=None, sections=[paper()["sections"][0]])) + "\n")
    (found,) = read_scisumm(str(file))
    assert outline(found)[0] == (1, "Abstract")


def test_papers_that_are_none(tmp_path):
    file = tmp_path / "papers.jsonl"
    file.write_text(json.dumps(paper(sections=[{"title": "A", "sentences": [["1", " "]]}])) + "\n")
    with pytest.raises(InputError, match=r"papers\.jsonl:1: sections\[0\]: sentences\[0\] text must be"):
        list(read_scisumm(str(file)))
    with pytest.raises(UsageError, match="neither a file nor a folder with cited_papers.jsonl or other_papers.jsonl"):
        list(read_scisumm(str(tmp_path)))
