"""Are web pages with misleading declarations of their encoding decoded as Chromium decodes them?

    python -m benchmarks.quality.html_encodings --out benchmarks/quality/results/html_encodings.md

Pages are made here: declarations in comments, scripts, links and text, in wrong forms and places, of unknown and of
replaced encodings, with byte order marks, late, twice, and none at all. Chromium shows each from a file; the text of
one paragraph is compared with that of `decoded`.
"""

import html
import os
import re
import subprocess
import tempfile
from pathlib import Path

from benchmarks.common import arguments, grid
from qrag_jax.documents.readers.html_encoding import decoded
from qrag_jax.types import InputError

DE = "Die Mühle öffnet um acht; Gebühr 12 €."
RU = "Мельница открывается в восемь часов утра, вход свободный для всех гостей."
JA = "水車は八時に開きます。①入場料は百円～二百円です。"
PLAIN_JA = JA.replace("①", "").replace("～", "")
M = "<meta charset=windows-1252>"
_PARAGRAPH = re.compile(r'<p id="?t"?>(.*?)</p', re.DOTALL)


def page(
    head: str, t: str = DE, enc: str = "utf-8", pre: bytes = b"<!doctype html><html><head>", post: str = "</head><body>"
) -> bytes:
    """A page with a declaration before its title.

    Args:
        head: what is before the title.
        t: text of the paragraph that is compared.
        enc: encoding of that text.
        pre: begin of the page.
        post: what is between the title and the paragraph.
    """
    top = pre + head.encode("latin-1") + b"<title>T</title>" + post.encode()
    return top + b"<p id=t>" + t.encode(enc) + b"</p></body></html>"


def make_pages() -> dict[str, bytes]:
    """Name -> page."""
    pages: dict[str, bytes] = {}
    pages["plain-declared-1252-utf8-bytes"] = page(M)
    pages["comment"] = page(f"<!-- {M} -->")
    pages["comment-then-real"] = page(f"<!-- {M} --><meta charset=utf-8>")
    pages["comment-short"] = page(f"<!--> {M} -->")
    pages["comment-dash"] = page(f"<!---> {M} -->")
    pages["comment-bang-end"] = page(f"<!-- x --!>{M} -->")
    pages["bogus-comment"] = page(f"<? {M} ")
    pages["bogus-comment2"] = page(f"<!x {M} ")
    pages["bogus-endtag"] = page(f"</ {M} ")
    pages["cdata"] = page(f"<![CDATA[ > {M} ]]>")
    pages["script"] = page(f"<script>var a='{M}'</script>")
    pages["script-encoding"] = page('<script>var encoding = "base64"</script>')
    pages["script-comment"] = page(f"<script><!-- <script> </script> {M} --></script>")
    pages["style"] = page(f"<style>/* {M} */ @charset 'latin1';</style>")
    pages["title"] = page(f"<title>{M}</title>")
    pages["textarea"] = page(f"<textarea>{M}</textarea>")
    pages["noscript"] = page(f"<noscript>{M}</noscript>")
    pages["template"] = page(f"<template>{M}</template>")
    pages["xmp"] = page(f"<xmp>{M}</xmp>")
    pages["iframe"] = page(f"<iframe>{M}</iframe>")
    pages["noframes"] = page(f"<noframes>{M}</noframes>")
    pages["plaintext"] = page(f"<plaintext>{M}")
    pages["svg"] = page(f"<svg>{M}</svg>")
    pages["object"] = page(f"<object>{M}</object>")
    pages["link-attr"] = page("<link rel=stylesheet charset=windows-1252 href=a.css>")
    pages["script-attr"] = page("<script charset=windows-1252 src=a.js></script>")
    pages["form-attr"] = page("<form accept-charset=windows-1252>")
    pages["a-attr"] = page("<a charset=windows-1252 href=x>x</a>")
    pages["text"] = page("charset=windows-1252 encoding=latin1 ")
    pages["attr-value"] = page(f"<div title='{M}'></div>")
    pages["attr-value-dq"] = page(f'<div title="{M}"></div>')
    pages["meta-name-content"] = page("<meta name=description content='text/html; charset=windows-1252'>")
    pages["meta-property"] = page("<meta property=og:x content='charset=windows-1252'>")
    pages["http-equiv"] = page("<meta http-equiv=Content-Type content='text/html; charset=windows-1252'>")
    pages["http-equiv-order"] = page("<meta content='text/html; charset=windows-1252' http-equiv=content-type>")
    pages["http-equiv-refresh"] = page("<meta http-equiv=refresh2 content='9; charset=windows-1252'>")
    pages["http-equiv-quoted"] = page("""<meta http-equiv=content-type content='text/html; charset="windows-1252"'>""")
    pages["http-equiv-badquote"] = page("""<meta http-equiv=content-type content='text/html; charset="windows-1252'>""")
    pages["http-equiv-spaces"] = page(
        """<meta http-equiv=content-type content='text/html; charset = windows-1252 ; x'>"""
    )
    pages["http-equiv-two"] = page("""<meta http-equiv=content-type content='charset x; charset=windows-1252'>""")
    pages["http-equiv-comma"] = page("""<meta http-equiv=content-type content='charset=windows-1252,utf-8'>""")
    pages["http-equiv-notype"] = page("""<meta http-equiv=content-type content='text/html'>""")
    pages["http-equiv-space-name"] = page(
        """<meta http-equiv=' content-type ' content='text/html; charset=windows-1252'>"""
    )
    pages["both-charset-first"] = page("<meta charset=utf-8 http-equiv=content-type content='charset=windows-1252'>")
    pages["both-content-first"] = page("<meta http-equiv=content-type content='charset=windows-1252' charset=utf-8>")
    pages["content-no-equiv-charset"] = page("<meta content='charset=utf-8' charset=windows-1252>")
    pages["dup-attr"] = page("<meta charset=utf-8 charset=windows-1252>")
    pages["label-spaces"] = page("<meta charset='  windows-1252 '>")
    pages["label-upper"] = page("<META CHARSET=WINDOWS-1252>")
    pages["self-closing"] = page("<meta charset=windows-1252/>")
    pages["self-closing2"] = page("<meta charset='windows-1252'/>")
    pages["slash"] = page("<meta/charset=windows-1252>")
    pages["entity-label"] = page("<meta charset='windows&#45;1252'>")
    pages["newlines"] = page("<meta\n charset\n=\n'windows-1252'\n>")
    pages["metax"] = page("<metax charset=windows-1252>")
    pages["end-meta"] = page("</meta charset=windows-1252>")
    pages["unknown-label"] = page("<meta charset=klingon>")
    pages["unknown-then-known"] = page("<meta charset=klingon><meta charset=windows-1252>")
    pages["empty-label"] = page("<meta charset=''><meta charset=windows-1252>")
    pages["two-metas"] = page("<meta charset=utf-8><meta charset=windows-1252>")
    pages["utf16-declared"] = page("<meta charset=utf-16>")
    pages["utf16le-declared"] = page("<meta charset=utf-16le>")
    pages["utf16be-pragma"] = page("<meta http-equiv=content-type content='text/html; charset=utf-16be'>")
    pages["unicode-label"] = page("<meta charset=unicode>")
    pages["ucs2-label"] = page("<meta charset=ucs-2>")
    pages["utf32-label"] = page("<meta charset=utf-32>")
    pages["utf7-label"] = page("<meta charset=utf-7>")
    pages["utf8-dashless"] = page("<meta charset=utf8>")
    pages["utf_8"] = page("<meta charset=utf_8>")
    pages["x-user-defined"] = page("<meta charset=x-user-defined>")
    pages["replacement-kr"] = page("<meta charset=iso-2022-kr>")
    pages["replacement-hz"] = page("<meta charset=hz-gb-2312>")
    pages["bom-vs-meta"] = b"\xef\xbb\xbf" + page(M)
    pages["bom16le-vs-meta"] = b"\xff\xfe" + page("<meta charset=utf-8>").decode().encode("utf-16-le")
    pages["bom16be-vs-meta"] = b"\xfe\xff" + page("<meta charset=utf-8>").decode().encode("utf-16-be")
    pages["utf16le-nobom"] = page("<meta charset=utf-16>").decode().encode("utf-16-le")
    pages["utf16be-nobom"] = page("").decode().encode("utf-16-be")
    for n in (900, 1100, 2000, 5000, 70000):
        pages[f"late-meta-head-{n}"] = page(f"<script>{'x' * n}</script>" + M)
        pages[f"late-meta-comment-{n}"] = page(f"<!-- {'x' * n} -->" + M)
        pages[f"late-meta-body-{n}"] = page("", post="</head><body>" + f"<i>{'x' * n}</i>" + M)
    pages["late-meta-afterbody-in1024"] = page("", post="</head><body>" + M)
    pages["late-meta-div"] = page("", post="</head><body><div>" + "x" * 950 + M)
    pages["late-head-div-many"] = page("<div>" + "<link rel=x href=y>" * 70 + M)
    pages["late-head-unknown-title"] = page("<link rel=x href=y>" * 400 + M)
    pages["late-head-img"] = page("<img>" + "<link rel=x href=y>" * 400 + M)
    pages["xmldecl-html"] = page("", pre=b'<?xml version="1.0" encoding="windows-1252"?><!doctype html><html><head>')
    pages["xmldecl-html-vs-meta"] = page(
        "<meta charset=utf-8>", pre=b'<?xml version="1.0" encoding="windows-1252"?><!doctype html><html><head>'
    )
    pages["xmldecl-space"] = page("", pre=b' <?xml version="1.0" encoding="windows-1252"?><!doctype html><html><head>')
    pages["xmldecl-single"] = page("", pre=b"<?xml version='1.0' encoding='windows-1252'?><!doctype html><html><head>")
    pages["xmldecl-utf16"] = page("", pre=b"<?xml version='1.0' encoding='utf-16'?><!doctype html><html><head>")
    pages["xmldecl-unknown"] = page(M, pre=b"<?xml version='1.0' encoding='klingon'?><!doctype html><html><head>")
    pages["xmldecl-noversion"] = page("", pre=b"<?xml encoding='windows-1252'?><!doctype html><html><head>")
    pages["declared-utf8-latin1-bytes"] = page(
        "<meta charset=utf-8>", t="Die Mühle öffnet um acht; Gebühr 12.", enc="latin-1"
    )
    pages["undeclared-latin1"] = page(
        "", t="Die Mühle öffnet um acht; die Gebühr für Gäste beträgt zwölf.", enc="latin-1"
    )
    pages["undeclared-cp1252"] = page("", enc="cp1252")
    pages["undeclared-1251"] = page("", t=RU, enc="cp1251")
    pages["undeclared-koi8"] = page("", t=RU, enc="koi8-r")
    pages["undeclared-sjis"] = page("", t=JA, enc="cp932")
    pages["undeclared-eucjp"] = page("", t=PLAIN_JA, enc="euc_jp")
    pages["undeclared-gbk"] = page("", t="水车八点开门，入场费是十二元，欢迎各位来宾。", enc="gbk")
    pages["undeclared-big5"] = page("", t="水車八點開門，入場費是十二元，歡迎各位來賓。", enc="big5")
    pages["undeclared-euckr"] = page("", t="물레방아는 여덟 시에 문을 엽니다. 입장료는 십이 원입니다.", enc="cp949")
    pages["undeclared-utf8"] = page("")
    pages["undeclared-utf8-onebad"] = page("", t=DE * 30).replace(b"</p>", b"\xff</p>")
    pages["undeclared-ascii"] = page("", t="The mill opens.")
    pages["undeclared-2022jp"] = page("", t=PLAIN_JA, enc="iso2022_jp")
    pages["sjis-x"] = page("<meta charset=x-sjis>", t=JA, enc="cp932")
    pages["eucjp"] = page("<meta charset=x-euc-jp>", t=PLAIN_JA, enc="euc_jp")
    pages["latin1-c1"] = page("<meta charset=iso-8859-1>", t=DE, enc="cp1252")
    pages["gb2312-euro"] = page("<meta charset=gb2312>", t="价格 12 欧元 镕", enc="gb18030")
    pages["koi8u"] = page("<meta charset=koi8-u>", t="Млин відчиняється о восьмій", enc="koi8-u")
    pages["tis620"] = page("<meta charset=tis-620>", t="โรงสีเปิดแปดโมง", enc="cp874")
    pages["hebrew-visual"] = page("<meta charset=visual>", t="הטחנה נפתחת", enc="iso8859-8")
    pages["logical"] = page("<meta charset=logical>", t="הטחנה נפתחת", enc="iso8859-8")
    pages["mac-cyr"] = page("<meta charset=x-mac-cyrillic>", t=RU, enc="mac-cyrillic")
    pages["big5hk"] = page("<meta charset=big5-hkscs>", t="水車八點開門，嘅", enc="big5hkscs")
    pages["nul-in-meta"] = page("<meta char\0set=windows-1252>")
    pages["lt-in-tag"] = page("<div <meta charset=windows-1252>")
    pages["unclosed-attr"] = page('<div title="<meta charset=windows-1252>')
    pages["nested-quote"] = page("<div title='a>b\"'><meta charset=windows-1252>")
    pages["noscript-head"] = page(f"<noscript><style>x</style></noscript>{M}")
    pages["after-html-close"] = page("") + M.encode()
    return pages


def shown(raw: bytes, folder: Path, browser: str) -> str:
    """The text of the paragraph in Chromium; all that it shows if there is none."""
    path = folder / "page.html"
    path.write_bytes(raw)
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()]
    environment = os.environ | {"HOME": str(folder)}
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=True)
    return text_of(ended.stdout.decode())


def text_of(page: str) -> str:
    """The text of the last paragraph that is compared."""
    found = _PARAGRAPH.findall(page)
    return html.unescape(found[-1]) if found else page


def read(raw: bytes) -> tuple[str, str]:
    """The text of the paragraph by our reader, and what it says besides."""
    try:
        text, left_out = decoded(raw)
    except InputError as error:
        return "", f"refused: {error}"
    return text_of(text), ", ".join(f"{number} {kind}" for kind, number in left_out.items())


def main() -> None:
    """Compares all pages, and prints or writes the table."""
    parser = arguments(__doc__)
    parser.add_argument("--browser", default="chromium", help="path of Chromium")
    parser.add_argument("--out", type=Path, help="page of results")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, raw in make_pages().items():
            there, (here, said) = shown(raw, Path(folder), given.browser), read(raw)
            rows.append((name, "yes" if here == there else "no", said, "" if here == there else f"`{there[:40]!r}`"))
    same = sum(row[1] == "yes" for row in rows)
    lines = [f"{same} of {len(rows)} pages are decoded as Chromium decodes them.", ""]
    lines += grid(("page", "same", "said", "Chromium, if not the same"), rows)
    print("\n".join(lines))
    if given.out:
        title = "# Web pages with misleading declarations of their encoding"
        command = "`python -m benchmarks.quality.html_encodings`"
        given.out.write_text("\n".join([title, "", command, "", *lines, ""]))


if __name__ == "__main__":
    main()
