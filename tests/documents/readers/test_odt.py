"""Words of OpenDocument texts at their places; each case is a way in which a program writes such files."""

import pytest
from support.documents import tiny_odt

from qrag_jax.documents.readers.office import read_odt
from qrag_jax.types import InputError

STYLES = """<style:style style:name="Up"><style:text-properties style:text-position="super 58%"/></style:style>
<style:style style:name="Low"><style:text-properties style:text-position="-33% 58%"/></style:style>
<style:style style:name="Gone"><style:text-properties text:display="none"/></style:style>
<style:style style:name="GoneToo" style:parent-style-name="Gone"/><style:style style:name="Title"/>
<style:style style:name="MyTitle" style:parent-style-name="Title"/>
<style:style style:name="H3" style:default-outline-level="3"/>
<style:style style:name="Loop" style:parent-style-name="Loop"/>
<text:list-style style:name="L"><text:list-level-style-number text:level="1" style:num-suffix="." style:num-format="1"/>
<text:list-level-style-number text:level="2" style:num-prefix="(" style:num-suffix=")" style:num-format="a"/>
</text:list-style>
<text:list-style style:name="B"><text:list-level-style-bullet text:level="1" text:bullet-char="x"/></text:list-style>
<text:outline-style><text:outline-level-style text:level="1" style:num-format="1"/><text:outline-level-style
text:level="2" style:num-format="1" text:display-levels="2"/></text:outline-style>"""


def text_of(body, styles=STYLES, **others):
    return read_odt(tiny_odt(body, styles, **others)).text


def p(inside, style=""):
    return f'<text:p text:style-name="{style}">{inside}</text:p>'


def row(*cells):
    return f"<table:table-row>{''.join(cells)}</table:table-row>"


def tc(text, about=""):
    return f"<table:table-cell {about}>{p(text)}</table:table-cell>"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (p("A<text:s text:c='3'/>b<text:tab/>c<text:line-break/>d\n  e"), "A b c\nd e"),
        (
            p("2<text:span text:style-name='Up'>10</text:span> of H<text:span text:style-name='Low'>2</text:span>O"),
            "2^10 of H₂O",
        ),
        (p("Due <text:date>3 May</text:date>, <text:bookmark-ref>page 4</text:bookmark-ref>."), "Due 3 May, page 4."),
        (
            p("<text:ruby><text:ruby-base>検</text:ruby-base><text:ruby-text>けん</text:ruby-text></text:ruby>"),
            "検(けん)",
        ),
        (p("A<text:script>alert(1)</text:script>.<text:change-start/>new"), "A.new"),
        (
            f"<text:tracked-changes><text:changed-region><text:deletion>{p('Old.')}</text:deletion></text:changed-region>"
            f"</text:tracked-changes>{p('New.')}",
            "New.",
        ),
        (f"<text:section>{p('In it.')}</text:section>", "In it."),
        (
            f"<text:table-of-content><text:table-of-content-source><text:index-title-template>X</text:index-title-template>"
            f"</text:table-of-content-source><text:index-body>{p('Gates 1')}</text:index-body></text:table-of-content>",
            "Gates 1",
        ),
        (
            '<text:h text:outline-level="2">Gates</text:h>' + p("B", "MyTitle") + p("C", "H3") + p("D", "Loop"),
            "## Gates\n\n# B\n\n### C\n\nD",
        ),
        (
            p("A <draw:frame><draw:text-box>" + p("Box.") + "</draw:text-box><svg:desc>no</svg:desc></draw:frame>b"),
            "A b\n\nBox.",
        ),
        ("<draw:custom-shape>" + p("Shape.") + "</draw:custom-shape>" + p("A"), "Shape.\n\nA"),
        (
            p(
                "A<text:note text:note-class='footnote'><text:note-citation>1</text:note-citation><text:note-body>"
                + p("Low.")
                + "</text:note-body></text:note>."
            )
            + p("B"),
            "A[^1].\n\n[^1]: Low.\n\nB",
        ),
        (
            '<office:forms><form:form><form:checkbox form:id="c" form:label="Agree"/></form:form></office:forms>'
            + p('<draw:control draw:control="c"/>'),
            "Agree",
        ),
    ],
)
def test_no_word_is_lost_or_fused(body, text):
    styles = STYLES.partition("<text:outline-style")[0]
    found = read_odt(tiny_odt(body, styles))
    assert (found.text, found.left_out) == (text, {})


def test_labels_of_lists_and_headings():
    def item(*inside):
        return f"<text:list-item>{''.join(inside)}</text:list-item>"

    def listed(style, *inside, more=""):
        return f"<text:list text:style-name='{style}' {more}>{''.join(inside)}</text:list>"

    body = listed("L", item(p("One"), listed("", item(p("Part")))), item(p("Two"), p("More")))
    again = listed("L", item(p("Three")), more="text:continue-numbering='true'")
    bullets = listed("B", f"<text:list-header>{p('Head')}</text:list-header>", item(p("Dot")))
    assert text_of(body + again + bullets) == "1. One\n\n(a) Part\n\n2. Two\n\nMore\n\n3. Three\n\nHead\n\n- Dot"
    headings = "".join(f'<text:h text:outline-level="{level}">H</text:h>' for level in (1, 2, 1, 2))
    assert text_of(headings) == "# 1 H\n\n## 1.1 H\n\n# 2 H\n\n## 2.1 H"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            f"<table:table-header-rows>{row(tc('Month'), tc('Low'))}</table:table-header-rows>"
            + row(tc("May", 'table:number-rows-spanned="2"'), tc("1.1"))
            + row("<table:covered-table-cell/>", tc("1.2")),
            "| Month | Low |\n| --- | --- |\n| May | 1.1 |\n| May | 1.2 |",
        ),
        (
            row(tc("Both", 'table:number-columns-spanned="2"'), "<table:covered-table-cell/>", tc("C|D"))
            + row(tc("a"), tc("b"), tc("c")),
            "| Both | Both | C\\|D |\n| --- | --- | --- |\n| a | b | c |",
        ),
        (
            row(tc("a"), tc("b"), '<table:table-cell table:number-columns-repeated="99999"/>'),
            "| a | b |\n| --- | --- |",
        ),
        (
            row(f"<table:table-cell><table:table>{row(tc('x'), tc('y'))}</table:table></table:table-cell>"),
            "| x | y |\n| --- | --- |",
        ),
        (
            row(tc("a"), tc("b"))
            + row(tc("c"), f"<table:table-cell><table:table>{row(tc('x'), tc('y'))}</table:table></table:table-cell>"),
            "a\n\nb\n\nc\n\n| x | y |\n| --- | --- |",
        ),
    ],
)
def test_cells_stand_under_their_heads(rows, text):
    assert text_of(f"<table:table><table:table-column/>{rows}</table:table>") == text


def test_what_is_not_shown_is_counted():
    body = (
        p("one two", "GoneToo")
        + p('A<text:hidden-text text:string-value="three"/>')
        + p(
            "<draw:frame><draw:image/></draw:frame><office:annotation><dc:creator>Ada</dc:creator><dc:date>2020</dc:date>"
            + p("Check.")
            + "</office:annotation>B"
        )
        + f'<text:section text:display="none">{p("four")}</text:section>'
        + p('<text:hidden-paragraph text:is-hidden="true"/>five')
        + p(
            '<text:hidden-paragraph text:is-hidden="false"/>'
            '<text:hidden-text text:is-hidden="false">C</text:hidden-text>'
        )
    )
    found = read_odt(tiny_odt(body, STYLES))
    assert (found.text, found.left_out) == ("A\n\nB\n\nC", {"hidden words": 5, "pictures": 1, "comments": 1})
    assert read_odt(tiny_odt(body, STYLES), comments=True).text == "A\n\nB\n\n[Ada: Check.]\n\nC"


def test_formulas_and_charts_are_in_their_own_members():
    source = "<semantics><mi>x</mi><annotation>x^2 over y</annotation></semantics>"
    math = f'<math xmlns="http://www.w3.org/1998/Math/MathML">{source}</math>'
    names = " ".join(f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text"))
    chart = f"<office:document-content {names}><office:body>{p('Tides')}</office:body></office:document-content>"
    frame = '<draw:frame><draw:object xlink:href="./{}"/><draw:image/></draw:frame>'
    body = p("So " + frame.format("M") + " or " + frame.format("C") + frame.format("None"))
    found = read_odt(tiny_odt(body, STYLES, {"M/content.xml": math, "C/content.xml": chart}))
    assert (found.text, found.left_out) == ("So x^2 over y or\n\nTides", {"embedded files": 1})


def test_headers_and_footers_stand_once_at_the_end():
    pages = f"<style:header>{p('Manual 7')}</style:header><style:header-left>{p('Manual 7')}</style:header-left>"
    assert text_of(p("A"), pages=pages + f"<style:footer>{p('Secret')}</style:footer>") == "A\n\nManual 7\n\nSecret"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (tiny_odt("", kind="spreadsheet"), "a spreadsheet .ODS., which cannot be read; save its sheets as .csv"),
        (tiny_odt("", kind="presentation"), "slides .ODP., which cannot be read; save them as PDF"),
        (tiny_odt(p("")), "an OpenDocument text without text"),
        (
            tiny_odt("A", others={"META-INF/manifest.xml": "<a><manifest:encryption-data/></a>"}),
            "with a password; save it",
        ),
        (tiny_odt("<text:p>" * 300 + "</text:p>" * 300), "'content.xml' in it is damaged XML .Excessive depth"),
        (tiny_odt("</text:p>"), "'content.xml' in it is damaged XML .Opening and ending tag"),
    ],
)
def test_what_cannot_be_read_is_refused(raw, message):
    with pytest.raises(InputError, match=message):
        read_odt(raw)
