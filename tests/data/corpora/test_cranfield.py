"""A small collection in the form of Cranfield's files."""

import pytest

from qrag_jax.data.corpora.cranfield import EMPTY_DOCUMENT, NO_RELEVANT, read_cranfield
from qrag_jax.types import InputError

FILES = {
    "cran.all.1400.xml": """<doc>
<docno>1</docno>
<title>lift of a
wing .</title>
<author>ada,b.</author>
<text>lift of a
wing .
  mach < 5 & more, r&amp;d, &nbsp; &lt;q&gt; .</text>
</doc>
<doc>
<docno>2</docno>
<title>drag .</title>
<text> it slows . </text>
</doc>
<doc>
<docno>3</docno>
<title></title>
<text>
</text>
</doc>
""",
    # As in the collection the numbers have holes, and the second of them is the number of another question below.
    "cran.qry.xml": """<?xml version='1.0' encoding='utf-8'?>
<xml>
<top><num> 1</num>
<title>
what lifts
a wing .
</title>
</top>
<top><num> 3</num><title>what slows .</title></top>
<top><num> 8</num><title>what is lost .</title></top>
</xml>
""",
    "cranqrel.trec.txt": "1 0 1 1\n1 0 3 1\n1 0 2 0\n2 0 2 3\n2 0 2 1\n2 0 1 -1\n3 0 3 1\n",
}


def write(folder, **change):
    for name, text in (FILES | change).items():
        (folder / name).write_text(text)
    return folder


def test_questions_are_numbered_by_their_order(tmp_path):
    task = read_cranfield(write(tmp_path), "cran")
    assert [(q.id, q.text, q.relevant) for q in task.questions] == [
        ("1", "what lifts a wing .", ("1",)),
        ("2", "what slows .", ("2",)),
    ]
    assert task.left_out == {EMPTY_DOCUMENT: 1, NO_RELEVANT: 1}


def test_texts_keep_bare_marks_and_have_their_title_once(tmp_path):
    first, second = read_cranfield(write(tmp_path), "cran").documents
    assert first.text == "lift of a\nwing .\n  mach < 5 & more, r&d, &nbsp; <q> ."
    assert (second.id, second.text) == ("2", "drag .\nit slows .")


def test_entities_are_never_expanded(tmp_path):
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>\n' + FILES["cran.all.1400.xml"].replace(
        "slows", "&b;"
    )
    task = read_cranfield(write(tmp_path, **{"cran.all.1400.xml": bomb}), "cran")
    assert task.documents[1].text == "drag .\nit &b; ."


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("cran.all.1400.xml", "<docno>2</docno>", "", "cran.all.1400.xml:10: no <docno>"),
        ("cran.all.1400.xml", "</doc>\n<doc>\n<docno>2", "\n<doc>\n<docno>2", "xml:1: <doc> without its end"),
        ("cran.all.1400.xml", "</text>\n</doc>\n", "</text>\n", "<doc> without its end|<doc>, . of them whole"),
        ("cran.qry.xml", "top>", "query>", "cran.qry.xml: 0 <top>, 0 of them whole"),
        (
            "cran.qry.xml",
            "<top><num> 8</num><title>what is lost .</title></top>",
            "",
            "judges 3 questions, numbered up to 3, but there are 2",
        ),
        (
            "cranqrel.trec.txt",
            "3 0 3 1",
            "8 0 3 1",
            "judges 3 questions, numbered up to 8, but there are 3: .*in the order",
        ),
        ("cranqrel.trec.txt", "1 0 1 1", "1 0 1", "cranqrel.trec.txt:1: '1 0 1': expected"),
        ("cranqrel.trec.txt", "1 0 1 1", "1 0 1 x", "cranqrel.trec.txt:1: '1 0 1 x': expected"),
        ("cranqrel.trec.txt", "1 0 1 1", f"1 0 1 {'9' * 5_000}", "cranqrel.trec.txt:1: '1 0 1 999"),
        ("cranqrel.trec.txt", "1 0 1 1", f"{'9' * 5_000} 0 1 1", "cranqrel.trec.txt:1: '9999"),
    ],
)
def test_broken_files_are_refused(tmp_path, name, old, new, message):
    text = FILES[name].replace(old, new)
    assert text != FILES[name]
    with pytest.raises(InputError, match=message):
        read_cranfield(write(tmp_path, **{name: text}), "cran")
