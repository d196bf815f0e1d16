import pytest

from qrag_jax.types import InputError

pytest.importorskip("trafilatura")

from qrag_jax.documents.converted import EXPECTED, ReadOptions  # noqa: E402
from qrag_jax.documents.readers.html import read_html  # noqa: E402

PROSE = "Rye is a grass that is grown as a grain, and it is closely related to wheat and to barley. " * 3
MENU = "<nav><ul><li><a href='/'>Home</a></li><li><a href='/shop'>Shop</a></li></ul></nav>"


def page(body, head=""):
    return f"<!doctype html><html><head><title>Title</title>{head}</head><body>{body}</body></html>".encode()


def text_of(body, **options):
    return read_html(page(body), ReadOptions(**options)).text.removeprefix("# Title\n\n")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<section><h1>Gate rules</h1><p>One.</p></section><h2>Fees</h2>Two.",
         "# Gate rules\n\nOne.\n\n## Fees\n\nTwo."),
        ("<figure><pre>gatectl --open\n  now</pre><figcaption>Listing 4</figcaption></figure>",
         "```\ngatectl --open\n  now\n```\n\nListing 4"),
        ("<article><p>One.</p><aside><p>Back up.</p></aside><footer>Until 2027.</footer></article>",
         "One.\n\nBack up.\n\nUntil 2027."),
        ("<h2><button>When?</button></h2><div>At seven.</div>", "## When?\n\nAt seven."),
        ("<details><summary>Why?</summary>So.</details>", "Why?\n\nSo."),
        ("<div role=heading aria-level=3>Fees</div>", "### Fees"),
        ("<h2 id=a>Fees<a href='#a'>¶</a></h2><p>Price<a href='#n'>*</a>", "## Fees\n\nPrice*"),
        ("<dl><dt>Gate<dt>Door<dd>A way in.<dt>Code<dd><pre>x</pre></dl>",
         "Gate\nDoor\n: A way in.\n\nCode\n\n```\nx\n```"),
        ("<ol start=3><li>a<ul><li>b<li>c</ul><li value=9>d</ol>", "3. a\n   - b\n   - c\n9. d"),
        ("<ol reversed><li>a<li>b</ol>", "2. a\n1. b"),
        ("<ul><li>a<ul><li><h3>Fees</h3>Two.<ul><li>b</ul><li>c</ul><li>d</ul>",
         "- a\n\n### Fees\n\nTwo.\n\n- b\n- c\n- d"),
        ("<ol><li><h3>Fees</h3>Two.<li><h3>Gate</h3></ol>", "### 1. Fees\n\nTwo.\n\n### 2. Gate"),
        ("<blockquote><p>a<p>b<ul><li>c</ul></blockquote>d", "> a\n>\n> b\n>\n> - c\n\nd"),
        ("<ul><li>a<pre>b\n  c</pre></ul>", "- a\n\n  ```\n  b\n    c\n  ```"),
        ("a<span style='color: red; display: block'>b</span>c", "a\n\nb\n\nc"),
        ("a<b>b</b><div>c</div>d<br>e<br><br>f&nbsp; g", "ab\n\nc\n\nd\ne\n\nf g"),
        ("<label>Name</label><input value=Ada><button>Go</button><button>Stop</button>", "Name Ada Go Stop"),
        ("<input type=submit value=Go><textarea>\na\nb</textarea>", "a\nb"),
        ("<select><option>One<option>Two</select>", "One, Two"),
        ("<pre>a ``` b</pre>", "````\na ``` b\n````"),
        ("<div class=fragment><div class=line>if (a) {</div><div class=line>&#160; b();</div></div>",
         "```\nif (a) {\n  b();\n```"),
        ("<ruby>字<rp>(</rp><rt>ji</rt><rp>)</rp></ruby> <q>so</q>", "字(ji) “so”"),
        ("a</body></html><p>b", "a\n\nb"),
    ],
)  # fmt: skip
def test_all_text_that_a_browser_shows_is_kept(body, text):
    assert text_of(body) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("the 4<sup>th</sup> of May; 25 m<sup>2</sup>, 2<sup>10</sup>, 100<sup>2</sup>, x<sub>1</sub>",
         "the 4th of May; 25 m², 2^10, 100^2, x_1"),
        ("10<sup>-6</sup> x<sup>n+1</sup> a<sub>ij</sub><sup>2</sup> CO<sub>2</sub>", "10^-6 x^(n+1) a_ij^2 CO₂"),
        ("note<sup>[1]</sup> note<sup>a</sup> note<sup><a href='#f'>2</a></sup> <sup>3</sup> note",
         "note[1] note^a note^2 3 note"),
        ("<math><msup><mi>x</mi><mn>2</mn></msup><mo>+</mo><mfrac><mrow><mi>a</mi><mo>-</mo><mi>b</mi></mrow><mn>2</mn>"
         "</mfrac><mo>=</mo><msqrt><mi>y</mi></msqrt></math>", "x^2 + (a - b)/2 = sqrt(y)"),
        ("<math><semantics><mrow><mo>-</mo><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup></mrow>"
         "<annotation>-x_i^2</annotation></semantics></math>", "-x_i^2"),
        ("<math><munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover><msub><mi>a</mi><mi>i</mi></msub></math>",
         "∑_i^n a_i"),
        ("<img class='mwe-math-fallback-image' alt='{x}'> <script type='math/tex'>y</script>", "{x} $y$"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("html", ["page", "article"])
def test_numbers_above_and_below_the_line_stay_apart(body, text, html):
    if html == "page" or "<sup" in body:
        assert text in text_of(f"<article><p>{PROSE}</p><p>{body}</p></article>", html=html)


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ("<tr><th>Part<th>Port<tr><td>Cable<td>USB-A|USB-C", ["Part | Port", "Cable | USB-A\\|USB-C"]),
        ("<tr><th>Month<th>Low<th>High<tr><td rowspan=2>May<td>1.1<td>3.1<tr><td>1.2<td>3.2",
         ["Month | Low | High", "May | 1.1 | 3.1", "May | 1.2 | 3.2"]),
        (f"<tr><th>A<th>B<tr><td rowspan=2>{PROSE}<td>1<tr><td>2", ["A | B", f"{PROSE.strip()} | 1", " | 2"]),
        ("<tr><th>A<th>B<th>C<tr><td colspan=2>1<td>3", ["A | B | C", "1 |  | 3"]),
        ("<thead><tr><th rowspan=2>Month<th colspan=2>Level<tr><th>Low<th>High</thead><tr><td>May<td>1<td>3",
         ["Month | Level Low | Level High", "May | 1 | 3"]),
        ("<tr><th>Name<td>Ada<tr><th>Age<td>30", [" | ", "Name | Ada", "Age | 30"]),
        ("<tr><td>a<td>b<tr><td>1<td>2", ["a | b", "1 | 2"]),
        ("<form><tr><th>A<th>B</tr></form><tr><td>1<br>2<td><ul><li>x<li>y</ul>", ["A | B", "1 2 | x; y"]),
        ("<tr><th>A<th>B<tr><td>1<td><table><tr><td>x<td>y<tr><td>z</table>", ["A | B", "1 | x, y; z"]),
    ],
)  # fmt: skip
def test_values_of_tables_are_under_their_heads(rows, lines):
    head, *body = lines
    rule = " | ".join(["---"] * (head.count(" | ") + 1))
    assert text_of(f"<table><caption>All</caption>{rows}</table>") == "\n".join(
        ["All", "", *(f"| {line} |" for line in (head, rule, *body))]
    )


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("<tr><td>a<td><table><tr><th>b<th>c<tr><td>1<td>2</table>", "a\n\n| b | c |\n| --- | --- |\n| 1 | 2 |"),
        ("<tr><td><h2>a</h2><td>b", "## a\n\nb"),
        ("<tr><td><pre>1\n2</pre><td><pre>a\nb</pre>", "```\n1\n2\n```\n\n```\na\nb\n```"),
        ("<tr><td>a<p>b<tr><td>c", "a\n\nb\n\nc"),
        ("<tr><td><img alt=''><td>a note<td>", "a note"),
        ("<tr><td colspan=2><h2>a</h2><tr><td>int<td>b (c)", "## a\n\nint b (c)"),
    ],
)
def test_tables_of_layout_become_blocks(table, text):
    assert text_of(f"<table>{table}</table>") == text


def test_spans_of_a_hostile_table_do_not_multiply():
    wide = "<tr>" + "<td rowspan=65534 colspan=1000>a" * 200
    assert len(text_of(f"<table>{wide}{'<tr><td>b' * 2_000}</table>")) < 500_000


def test_elements_that_are_drawn_but_not_as_text_are_read():
    body = (
        "<p>Ten <embed src=a>to the 10<span style='vertical-align: super'>6</span></p><noembed>No</noembed>"
        "<div><template shadowrootmode=open><p>Shadow</p></template></div><input type=button value=Send>"
        "<select><optgroup label=North><option>Oslo<option label=Rome>r</select>"
    )
    assert text_of(body) == "Ten to the 10^6\n\nShadow\n\nSend North, Oslo, Rome"


def test_pages_without_tags_of_head_and_body_are_read():
    """The parser puts elements that are younger than it into the head."""
    raw = b"<!doctype html><meta charset=utf-8><title>T</title><header>Fees</header><main>Ten</main><nav>Up</nav><p>x"
    found = read_html(raw)
    assert (found.text, found.left_out) == ("# T\n\nFees\n\nTen\n\nx", {"words of navigation": 1})


def test_navigation_and_hidden_text_are_left_out_and_counted():
    hidden = (
        "<p hidden>One</p><p style='color: red; display:none'>two</p><dialog>three</dialog><template>x</template>"
        "<noscript>four</noscript><div popover>five</div><p hidden=until-found>Six.</p><dialog open>Seven.</dialog>"
        "<i aria-hidden=true>Eight</i><video>y</video><img src=a><img alt=''><div role=navigation>Next page</div>"
    )
    found = read_html(page(f"{MENU}<script>var Shop</script><style>p {{}}</style><svg><title>z</title></svg>{hidden}"))
    assert found.text == "# Title\n\nSix.\n\nSeven.\n\nEight"
    left_out = {"words of navigation": 4, "hidden words": 5, "pictures": 1, "embedded media": 1}
    assert found.left_out == left_out and left_out.keys() <= EXPECTED


@pytest.mark.parametrize(
    ("body", "text"),
    [(f"{MENU}", "- Home\n- Shop"), ("<body hidden><noscript>Turn on scripts</noscript>", "Turn on scripts")],
)
def test_a_page_without_other_text_is_its_navigation_or_its_hidden_text(body, text):
    assert text_of(body) == text


@pytest.mark.parametrize(
    ("title", "heading", "text"),
    [
        ("Gate", "Gate", "# Gate\n\nText."),
        ("gate  rules", "The Gate rules 2027", "# The Gate rules 2027\n\nText."),
        ("Gate", "Gateway", "# Gate\n\n# Gateway\n\nText."),
        ("", "Gate", "# Gate\n\nText."),
    ],
)
def test_the_title_is_the_first_heading_unless_the_page_says_it(title, heading, text):
    html = f"<title>{title}</title><h1>{heading}</h1><p>Text."
    assert read_html(html.encode()).text == text


def test_the_article_is_a_choice_and_counts_what_it_leaves_out():
    raw = page(f"{MENU}<article><h1>Rye</h1><p>{PROSE}</p></article><footer>Imprint of us</footer>")
    whole, article = read_html(raw), read_html(raw, ReadOptions(html="article"))
    assert "Imprint of us" in whole.text and "Imprint" not in article.text and PROSE.strip() in article.text
    assert whole.left_out == {"words of navigation": 2}
    assert article.left_out == {"words of navigation": 2, "words outside of the article": 3}


def test_paragraphs_without_ends_do_not_nest():
    assert read_html(page("<p>One more line of text." * 2_000)).text.count("One more line") == 2_000


def test_undecodable_characters_are_counted():
    found = read_html(page(f"<p>{PROSE * 30} ö</p>").replace(b"</p>", b"\xff</p>"))
    assert found.left_out == {"undecodable characters": 1}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"<meta charset=hz-gb-2312>Text", "an HTML page in 'hz-gb-2312', which browsers do not decode"),
        (page("<script>write('Text')</script>"), "an HTML page without text"),
        (b"", "an HTML page without text"),
        (page("<div>" * 1_100 + "Text"), "HTML with more than 1,000 nested elements"),
        (page("<template>" + "<div>" * 9_000 + "</template>Text"), "HTML with more than 1,000 nested elements"),
    ],
)
def test_bad_pages_are_refused(raw, message):
    with pytest.raises(InputError, match=message):
        read_html(raw)
