"""Words of DOCX that other readers lose, at their places; each case is a way in which a program writes such files."""

import io
import re
import zipfile

import pytest
from support.documents import paragraph, picture, relationships, tiny_docx, tiny_zip

from qrag_jax.documents.readers import zip_archive
from qrag_jax.documents.readers.office import read_docx
from qrag_jax.types import InputError

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
MC = "http://schemas.openxmlformats.org/markup-compatibility/2006"
WPS = "http://schemas.microsoft.com/office/word/2010/wordprocessingShape"
CHART = "http://schemas.openxmlformats.org/drawingml/2006/chart"
DIAGRAM = "http://schemas.openxmlformats.org/drawingml/2006/diagram"


def run(text, properties=""):
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def p(*inside, properties=""):
    return f"<w:p><w:pPr>{properties}</w:pPr>{''.join(inside)}</w:p>"


def tc(text, properties=""):
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{text if text.startswith('<') else paragraph(text)}</w:tc>"


def tr(*cells, properties=""):
    return f"<w:tr><w:trPr>{properties}</w:trPr>{''.join(cells)}</w:tr>"


def sdt(content):
    return f"<w:sdt><w:sdtPr><w:tag/></w:sdtPr><w:sdtContent>{content}</w:sdtContent></w:sdt>"


def tbl(*rows):
    return f"<w:tbl>{''.join(rows)}</w:tbl>"


def part(kind, content):
    """A member and the relation to it, whose id is its kind."""
    return kind, f'<w:{kind} xmlns:w="{W}" xmlns:r="{OFFICE}">{content}</w:{kind}>'


def with_parts(body, *parts, others=()):
    """A document with parts of (kind, content); the name of a part is its kind."""
    members = {f"word/{kind}.xml": content for kind, content in parts} | dict(others)
    relations = "".join(f'<Relationship Id="{k}" Type="{OFFICE}/{k}" Target="{k}.xml"/>' for k, _ in parts)
    relations += "".join(
        f'<Relationship Id="{name.rpartition("/")[2]}" Type="{OFFICE}/aFChunk" Target="/{name}"/>' for name, _ in others
    )
    return tiny_docx(body, members | {"word/_rels/document.xml.rels": relationships(relations)})


def text_of(body, *parts, comments=False):
    return read_docx(with_parts(body, *parts), comments).text


def style(name, inside, kind="paragraph", shown=None):
    return f'<w:style w:type="{kind}" w:styleId="{name}"><w:name w:val="{shown or name}"/>{inside}</w:style>'


def field(instruction, result=None, data=""):
    char = '<w:r><w:fldChar w:fldCharType="{}">{}</w:fldChar></w:r>'
    shown = "" if result is None else char.format("separate", "") + result
    return (
        char.format("begin", data)
        + f"<w:r><w:instrText>{instruction}</w:instrText></w:r>"
        + shown
        + char.format("end", "")
    )


def box(text):
    return f"<w:txbxContent>{paragraph(text)}</w:txbxContent>"


def alternate(choice, fallback):
    forms = f"<mc:Choice>{choice}</mc:Choice><mc:Fallback>{fallback}</mc:Fallback>"
    return f'<mc:AlternateContent xmlns:mc="{MC}">{forms}</mc:AlternateContent>'


SUP = '<w:vertAlign w:val="superscript"/>'
SHAPE = f'<w:drawing><wps:wsp xmlns:wps="{WPS}"><wps:txbx>{{}}</wps:txbx></wps:wsp></w:drawing>'
VML = '<w:pict><v:oval xmlns:v="urn:schemas-microsoft-com:vml"><v:textbox>{}</v:textbox></v:oval></w:pict>'


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (run("No ") + f'<w:fldSimple w:instr=" MERGEFIELD No ">{run("TX-4471")}</w:fldSimple>', "No TX-4471"),
        (field("REF due", run("3 May")), "3 May"),
        (field(f"IF {field('X', run('a'))} = b", run("yes")), "yes"),
        (field("MACROBUTTON None [Click here]"), "[Click here]"),
        (field("EQ \\f(1,2)"), "\\f(1,2)"),
        (field("FORMCHECKBOX", data='<w:ffData><w:checkBox><w:default w:val="1"/></w:checkBox></w:ffData>'), "☒"),
        (
            field(
                "X",
                data='<w:ffData><w:ddList><w:result w:val="1"/><w:listEntry w:val="a"/>'
                '<w:listEntry w:val="b"/></w:ddList></w:ffData>',
            ),
            "b",
        ),
        ('<w:r><w:fldChar w:fldCharType="begin"/></w:r>' + run("kept ") + field("X", run("too")), "kept too"),
        (f'{run("called ")}<w:bdo w:val="rtl">{run("משה כהן")}</w:bdo>', "called משה כהן"),
        (f'<w:dir w:val="ltr">{run("Ada")}</w:dir>', "Ada"),
        (f'<w:smartTag w:element="City">{run("Bremen")}</w:smartTag>', "Bremen"),
        (f'<w:customXml w:element="x">{run("Bremen")}</w:customXml>', "Bremen"),
        (sdt(run("South")), "South"),
        (
            "<w:r><w:ruby><w:rt><w:r><w:t>けん</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>検</w:t></w:r></w:rubyBase></w:ruby></w:r>",
            "検(けん)",
        ),
        ("<w:r><w:t>Warehouse</w:t><w:cr/><w:t>Seven</w:t></w:r>", "Warehouse\nSeven"),
        ("<w:r><w:t>Depth</w:t><w:ptab/><w:t>12m</w:t><w:tab/><w:t>x</w:t></w:r>", "Depth 12m x"),
        ("<w:r><w:t>e</w:t><w:noBreakHyphen/><w:t>ma</w:t><w:softHyphen/><w:t>il</w:t></w:r>", "e-mail"),
        ('<w:r><w:sym w:font="Symbol" w:char="F061"/><w:sym w:font="Wingdings" w:char="F0FE"/></w:r>', "α☑"),
        (run("\uf062", '<w:rFonts w:ascii="Symbol"/>'), "β"),
        ('<w:r><w:sym w:font="MS Gothic" w:char="2612"/></w:r>', "☒"),
        (f"{run('a')}<w:ins>{run('b')}</w:ins><w:del>{run('c')}</w:del><w:moveFrom>{run('d')}</w:moveFrom>", "ab"),
        (
            f"{run('2')}{run('1', SUP)}{run('0', SUP)}",
            "2^10",
        ),
        (f"{run('25 m')}{run('2', SUP)}{run(' on the 4')}{run('th', SUP)}", "25 m² on the 4th"),
        (f"{run('10')}{run('-6', SUP)}", "10^-6"),
        (run("H") + run("2", '<w:vertAlign w:val="subscript"/>') + run("O"), "H₂O"),
        (run("10") + run("6", '<w:position w:val="8"/><w:sz w:val="14"/>'), "10^6"),
        (run("H") + run("2", '<w:position w:val="-2"/><w:sz w:val="19"/>') + run("O"), "H₂O"),
        (run("a") + run("b", '<w:position w:val="2"/><w:sz w:val="24"/>'), "ab"),
    ],
)
def test_no_word_of_a_paragraph_is_lost_or_fused(inside, text):
    found = read_docx(tiny_docx(p(inside)))
    assert (found.text, found.left_out) == (text, {})


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (
            run("A.") + f"<w:r>{alternate(SHAPE.format(box('Code 8812.')), VML.format(box('Code 8812.')))}</w:r>",
            "A.\n\nCode 8812.",
        ),
        (f"<w:r>{alternate(SHAPE.format(''), VML.format(box('Old.')))}</w:r>", "Old."),
        (f"<w:r>{VML.format(box('Old.'))}</w:r>{run('B.')}", "B.\n\nOld."),
        ('<w:r><w:pict><v:textpath xmlns:v="urn:schemas-microsoft-com:vml" string="DRAFT"/></w:pict></w:r>', "DRAFT"),
        (
            "<w:r><w:drawing><a:bodyPr/><a:p><a:r><a:t>In a </a:t></a:r><a:r><a:t>group</a:t></a:r></a:p></w:drawing>"
            "</w:r>",
            "In a group",
        ),
    ],
)
def test_boxes_follow_their_paragraph_once(inside, text):
    assert text_of(p(inside)) == text


def test_equations_are_text_in_one_line():
    def m(name, *inside):
        return f"<m:{name}>{''.join(inside)}</m:{name}>"

    def e(text, name="e"):
        return m(name, m("r", m("t", text)))

    fraction = m("f", m("num", m("sSup", e("x"), e("2", "sup"))), e("y+1", "den"))
    total = m("nary", m("naryPr", '<m:chr m:val="∑"/>'), e("i=1", "sub"), e("n", "sup"), e("a"))
    others = m("rad", m("deg"), e("2")), m("func", e("sin", "fName"), e("x")), m("d", e("a"), e("b"))
    others += (
        m("m", m("mr", e("1"), e("0")), m("mr", e("0"), e("1"))),
        m("acc", e("v")),
        m("sPre", e("1", "sub"), e("H")),
    )
    assert text_of(p(run("So "), m("oMath", fraction), run("."))) == "So (x^2)/(y+1)."
    assert text_of(p(m("oMathPara", m("oMath", total)))) == "∑_(i=1)^n a"
    assert [text_of(p(m("oMath", one))) for one in others] == [
        "sqrt(2)",
        "sin x",
        "(a|b)",
        "[1, 0; 0, 1]",
        "v\u0302",
        "_1 H",
    ]


HEADINGS = part(
    "styles",
    style("A", "", shown="Heading 2,h2")
    + style("B", '<w:basedOn w:val="A"/>')
    + style("C", '<w:pPr><w:outlineLvl w:val="0"/></w:pPr>')
    + style("D", '<w:basedOn w:val="C"/><w:pPr><w:outlineLvl w:val="9"/></w:pPr>')
    + style("E", "", shown="Überschrift 3")
    + style("F", "", shown="Title")
    + style("G", '<w:basedOn w:val="H"/>')
    + style("H", '<w:basedOn w:val="G"/>'),
)


def test_headings_by_style_outline_and_name():
    names = "ABCDEFGHX"
    assert text_of("".join(paragraph(f"{name}.", name) for name in names), HEADINGS).split("\n\n") == [
        "## A.",
        "## B.",
        "# C.",
        "D.",
        "### E.",
        "# F.",
        "G.",
        "H.",
        "X.",
    ]
    assert text_of(p(run("Locks"), properties='<w:outlineLvl w:val="0"/>')) == "# Locks"
    assert text_of(p(run("Locks"), properties='<w:outlineLvl w:val="8"/>')) == "###### Locks"
    assert text_of(p(run("Text"), properties='<w:pStyle w:val="A"/><w:outlineLvl w:val="9"/>'), HEADINGS) == "Text"


def test_labels_of_lists_and_headings():
    def level(number, form, text, more=""):
        shown = f'<w:start w:val="1"/><w:numFmt w:val="{form}"/><w:lvlText w:val="{text}"/>'
        return f'<w:lvl w:ilvl="{number}">{shown}{more}</w:lvl>'

    def of(name, *levels):
        abstract = f'<w:abstractNum w:abstractNumId="{name}">{"".join(levels)}</w:abstractNum>'
        return f'{abstract}<w:num w:numId="{name}"><w:abstractNumId w:val="{name}"/></w:num>'

    outline = of(
        "3", level(0, "decimal", "%1", '<w:pStyle w:val="C"/>'), level(1, "decimal", "%1.%2", '<w:pStyle w:val="A"/>')
    )
    lists = (
        of("1", level(0, "decimal", "%1."), level(1, "lowerLetter", "(%2)"))
        + of("2", level(0, "bullet", "•"))
        + outline
    )
    override = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/></w:lvlOverride>'
    again = f'<w:num w:numId="9"><w:abstractNumId w:val="1"/>{override}</w:num>'

    def listed(text, number, depth=0, of_style=""):
        return p(
            run(text), properties=f'{of_style}<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="{number}"/></w:numPr>'
        )

    body = (
        listed("One", 1)
        + listed("Part", 1, 1)
        + listed("Two", 1)
        + listed("Five", 9)
        + listed("Dot", 2)
        + listed("None", 0)
    )
    assert text_of(body, part("numbering", lists + again)) == ("1. One\n\n(a) Part\n\n2. Two\n5. Five\n\n- Dot\n\nNone")
    styles = part(
        "styles",
        style("C", '<w:pPr><w:numPr><w:numId w:val="3"/></w:numPr><w:outlineLvl w:val="0"/></w:pPr>')
        + style(
            "A", '<w:pPr><w:numPr><w:ilvl w:val="1"/><w:numId w:val="3"/></w:numPr><w:outlineLvl w:val="1"/></w:pPr>'
        ),
    )
    body = paragraph("Gates", "C") + paragraph("Keys", "A") + paragraph("Locks", "C") + paragraph("Oil", "A")
    assert text_of(body, styles, part("numbering", lists)) == "# 1 Gates\n\n## 1.1 Keys\n\n# 2 Locks\n\n## 2.1 Oil"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            tr(tc("Month"), tc("Low"), tc("High"))
            + tr(tc("May", '<w:vMerge w:val="restart"/>'), tc("1.1"), tc("3.1"))
            + tr(tc("<w:p/>", "<w:vMerge/>"), tc("1.2"), tc("3.2")),
            "| Month | Low | High |\n| --- | --- | --- |\n| May | 1.1 | 3.1 |\n| May | 1.2 | 3.2 |",
        ),
        (
            tr(tc("Both", '<w:gridSpan w:val="2"/>'), tc("C"))
            + tr(tc("a"), tc("b"), tc("c"))
            + tr(tc("y"), tc("z"), properties='<w:gridBefore w:val="1"/>'),
            "| Both | Both | C |\n| --- | --- | --- |\n| a | b | c |\n|  | y | z |",
        ),
        (tr(tc("USB-A|USB-C"), tc("2")), "| USB-A\\|USB-C | 2 |\n| --- | --- |"),
        (tr(tc("a"), tc("b")) + tr(tc("c"), tc("d"), properties="<w:del/>"), "| a | b |\n| --- | --- |"),
        (sdt(tr(tc("a"), sdt(tc("b")))), "| a | b |\n| --- | --- |"),
        (tr(tc("<w:p/>" + tbl(tr(tc("x"), tc("y"))))), "| x | y |\n| --- | --- |"),
        (
            tr(tc("a"), tc("b")) + tr(tc("c"), tc("<w:p/>" + tbl(tr(tc("x"), tc("y")), tr(tc("z"))))),
            "a\n\nb\n\nc\n\n| x | y |\n| --- | --- |\n| z |",
        ),
        (
            tr(tc("wide", '<w:gridSpan w:val="999999"/>'), tc("b")),
            "| wide " * 64 + "| b |\n" + "| --- " * 65 + "|",
        ),
    ],
)
def test_cells_stand_under_their_heads(rows, text):
    assert text_of(tbl(rows)) == text


def note(kind, text, number):
    return f'<w:{kind} w:id="{number}">{paragraph(text)}</w:{kind}>'


def reference(kind, number=2):
    return f'<w:r><w:{kind}Reference w:id="{number}"/></w:r>'


def test_notes_are_linked_by_their_marks():
    body = p(run("A"), reference("footnote"), run(" b."), reference("endnote")) + p(run("C."), reference("footnote"))
    parts = part("footnotes", note("footnote", "Low.", 2)), part("endnotes", note("endnote", "Last.", 2))
    assert text_of(body, *parts) == "A[^1] b.[^2]\n\n[^1]: Low.\n\nC.[^1]\n\n[^2]: Last."


def test_remarks_are_counted_or_kept():
    remarks = part("comments", f'<w:comment w:id="2" w:author="Ada">{paragraph("Check.")}</w:comment>')
    raw = with_parts(p(run("A."), reference("comment")), remarks)
    assert (read_docx(raw).text, read_docx(raw).left_out) == ("A.", {"comments": 1})
    assert (read_docx(raw, comments=True).text, read_docx(raw, comments=True).left_out) == ("A.\n\n[Ada: Check.]", {})


def test_headers_and_footers_stand_once_at_the_end_without_numbers_of_pages():
    texts = {"header": "Manual 7", "footer": "Secret", "footer2": "- 12 -"}
    around = [(kind, f'<w:hdr xmlns:w="{W}">{paragraph(text)}</w:hdr>') for kind, text in texts.items()]
    section = "".join(f'<w:{kind[:6]}Reference r:id="{kind}"/>' for kind in texts)
    body = p(run("A."), properties=f"<w:sectPr>{section}</w:sectPr>") + paragraph("B.")
    assert text_of(f"{body}<w:sectPr>{section}</w:sectPr>", *around) == "A.\n\nB.\n\nManual 7\n\nSecret"


def test_hidden_text_is_counted():
    styles = part("styles", style("H", "<w:rPr><w:vanish/></w:rPr>", "character"))
    hidden = (
        run("one two", "<w:vanish/>")
        + run("three", '<w:rStyle w:val="H"/>')
        + run("shown", '<w:rStyle w:val="H"/><w:vanish w:val="0"/>')
    )
    found = read_docx(with_parts(p(hidden), styles))
    assert (found.text, found.left_out) == ("shown", {"hidden words": 3})


def test_paragraphs_that_continue_in_the_next():
    dropped = p(run("O"), properties='<w:framePr w:dropCap="drop"/>') + p(run("nce."))
    assert text_of(dropped) == "Once."
    assert text_of(p(run("Half "), properties="<w:rPr><w:del/></w:rPr>") + p(run("whole."))) == "Half whole."


def test_charts_and_diagrams():
    def points(name, *values):
        inside = "".join(f'<c:pt idx="{i}"><c:v>{one}</c:v></c:pt>' for i, one in enumerate(values))
        return f"<c:{name}><c:strRef><c:strCache>{inside}</c:strCache></c:strRef></c:{name}>"

    drawing = '<w:r><w:drawing><{0} xmlns:{1}="{2}" r:{3}="{4}"/></w:drawing></w:r>'
    name = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    title = f"<c:title {name}><a:p><a:r><a:t>Tides</a:t></a:r></a:p></c:title>"
    values = points("val", "1.1", "1.2000000000000002")
    series = f"<c:ser>{points('tx', 'Low')}{points('cat', 'May', 'June')}{values}</c:ser>"
    body = p(drawing.format("c:chart", "c", CHART, "id", "chart"))
    expected = "Tides\n\n|  | Low |\n| --- | --- |\n| May | 1.1 |\n| June | 1.2 |"
    assert text_of(body, ("chart", f'<c:chartSpace xmlns:c="{CHART}">{title}{series}</c:chartSpace>')) == expected
    shapes = "".join(
        f"<dgm:pt><dgm:t><a:p><a:r><a:t>{one}</a:t></a:r></a:p></dgm:t></dgm:pt>" for one in ("Plan", "Do")
    )
    data = f'<dgm:dataModel xmlns:dgm="{DIAGRAM}" {name}>{shapes}</dgm:dataModel>'
    assert text_of(p(drawing.format("dgm:relIds", "dgm", DIAGRAM, "dm", "data")), ("data", data)) == "Plan\n\nDo"


def test_other_documents_inside_are_read_or_counted():
    chunks = "".join(f'<w:altChunk r:id="{name}"/>' for name in ("a.html", "b.txt", "c.rtf", "d.mht"))
    others = [("word/a.html", "<p>From <b>HTML</b>.</p>"), ("word/b.txt", "Plain."), ("word/c.rtf", "{\\rtf1}")]
    others += [("word/d.mht", "MIME-Version: 1.0\nContent-Type: text/html; charset=utf-8\n\n<p>From a mail.</p>")]
    found = read_docx(with_parts(paragraph("A.") + chunks + '<w:p><w:subDoc r:id="x"/></w:p>', others=others))
    assert found.text == "A.\n\nFrom HTML.\n\nPlain.\n\nFrom a mail."
    assert found.left_out == {"embedded documents": 1, "subdocuments": 1}


def test_the_strict_form_is_read_alike():
    raw = with_parts(paragraph("Gates", "B"), HEADINGS)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        usual = {name: archive.read(name).decode() for name in archive.namelist()}
    strict = {
        name: re.sub("http://schemas.openxmlformats.org/([a-zA-Z]+)/2006/", r"http://purl.oclc.org/ooxml/\1/", content)
        for name, content in usual.items()
    }
    assert "purl" in strict["word/document.xml"]
    assert read_docx(tiny_zip(strict)).text == read_docx(raw).text == "## Gates"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<w:p/>", "a DOCX document without text"),
        ("<w:p>" * 300 + "</w:p>" * 300, "'word/document.xml' in it is damaged XML .Excessive depth"),
        ("<w:p>", "'word/document.xml' in it is damaged XML .*; save the document again"),
    ],
)
def test_what_cannot_be_read_is_refused(body, message):
    with pytest.raises(InputError, match=message):
        read_docx(tiny_docx(body))


def test_headings_paragraphs_and_tables_become_markdown():
    table = f"<w:tbl><w:tr>{tc('a')}{tc('b')}</w:tr><w:tr>{tc('1')}{tc('2')}</w:tr></w:tbl>"
    bold = "<w:p><w:r><w:rPr><w:b/></w:rPr><w:t>Bold_name *</w:t></w:r></w:p>"
    body = paragraph("Report", "Heading1") + paragraph("Rye", "Heading2") + bold + table
    found = read_docx(tiny_docx(body))
    assert found.text == "# Report\n\n## Rye\n\nBold_name *\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert found.pages is None and found.left_out == {}


def test_pictures_are_left_out_with_their_bytes():
    body, members = picture()
    text = read_docx(tiny_docx(paragraph("Before.") + body + paragraph("After."), members)).text
    assert text == "Before.\n\nAfter."


def test_a_picture_that_is_a_link_is_not_opened(tmp_path):
    body, members = picture((tmp_path / "none.png").as_uri(), is_external=True)
    assert read_docx(tiny_docx(paragraph("Text.") + body, members)).text == "Text."


@pytest.mark.parametrize(
    ("body", "others", "message"),
    [
        (paragraph("Text."), {"word/styles.xml": '<!DOCTYPE a [<!ENTITY b "c">]><a/>'}, "styles.xml. in it declares"),
        (paragraph("Text."), {"word/a.xml": "<!DOCTYPE a><a/>".encode("utf-16")}, "a.xml. in it declares entities"),
    ],
)  # fmt: skip
def test_hostile_documents_are_refused(body, others, message):
    with pytest.raises(InputError, match=message):
        read_docx(tiny_docx(body, others))


def test_xml_is_counted_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr("qrag_jax.documents.readers.docx_package.MAX_XML_BYTES", 5_000)
    assert zip_archive.MAX_XML_BYTES == 16_000_000
    with pytest.raises(InputError, match="bytes of XML, more than the 5,000 that are read; split the document"):
        read_docx(tiny_docx(paragraph("Some text.") * 200))


def test_symbols_of_unknown_fonts_are_counted():
    found = read_docx(tiny_docx(p('<w:r><w:t>A</w:t><w:sym w:font="Bookshelf" w:char="F021"/></w:r>')))
    assert (found.text, found.left_out) == ("A", {"symbols": 1})
