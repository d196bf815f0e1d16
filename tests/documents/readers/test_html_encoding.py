import codecs

import pytest

from qrag_jax.types import InputError

pytest.importorskip("trafilatura")

from qrag_jax.documents.readers.html_encoding import decoded  # noqa: E402

# Encoding that Python knows -> (a text, all labels by which browsers read it so: Chromium 156 and the standard).
# In pages that declare UTF-16, the declaration can be read, so they are UTF-8.
LABELS = {
    "utf-8": ("Mühle 水車", "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8 csunicode "
              "iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le unicodefffe utf-16be"),
    "cp1252": ("Gebühr “12 €”", "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 "
               "iso88591 iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252 x-user-defined"),
    "iso8859-2": ("młyn żółty", "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 "
                  "l2 latin2"),
    "iso8859-3": ("ĉĝĥĵŝŭ", "csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 "
                  "latin3"),
    "iso8859-4": ("āčēģ", "csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4"),
    "iso8859-5": ("мельница", "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 "
                  "iso_8859-5:1988"),
    "iso8859-6": ("طاحونة", "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e "
                  "iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987"),
    "iso8859-7": ("μύλος", "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 "
                  "iso_8859-7 iso_8859-7:1987 sun_eu_greek"),
    "iso8859-8": ("טחנה", "csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 iso88598 "
                  "iso_8859-8 iso_8859-8:1988 visual csiso88598i iso-8859-8-i logical"),
    "cp1254": ("değirmen “”", "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 "
               "l5 latin5 windows-1254 x-cp1254"),
    "iso8859-10": ("ÁŪŦŽ", "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6"),
    "iso8859-13": ("malūnas", "iso-8859-13 iso8859-13 iso885913"),
    "iso8859-14": ("ŵŷẁ", "iso-8859-14 iso8859-14 iso885914"),
    "iso8859-15": ("œuf 12 €", "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9"),
    "iso8859-16": ("moară ș €", "iso-8859-16"),
    "cp866": ("мельница", "866 cp866 csibm866 ibm866"),
    "koi8-r": ("мельница", "cskoi8r koi koi8 koi8-r koi8_r"),
    "koi8-u": ("млин їє", "koi8-ru koi8-u"),
    "mac-roman": ("Mühle “”", "csmacintosh mac macintosh x-mac-roman"),
    "mac-cyrillic": ("мельница", "x-mac-cyrillic x-mac-ukrainian"),
    "cp874": ("โรงสี “”", "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874"),
    "cp1250": ("młyn žluťoučký", "cp1250 windows-1250 x-cp1250"),
    "cp1251": ("мельница", "cp1251 windows-1251 x-cp1251"),
    "cp1253": ("μύλος Ά", "cp1253 windows-1253 x-cp1253"),
    "cp1255": ("טחנה ₪", "cp1255 windows-1255 x-cp1255"),
    "cp1256": ("طاحونة پ", "cp1256 windows-1256 x-cp1256"),
    "cp1257": ("malūnas „", "cp1257 windows-1257 x-cp1257"),
    "cp1258": ("đơn ₫", "cp1258 windows-1258 x-cp1258"),
    "gb18030": ("水车 € 镕", "chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk gb18030"),
    "big5hkscs": ("水車 嘅", "big5 big5-hkscs cn-big5 csbig5 x-x-big5"),
    "euc_jp": ("水車は八時", "cseucpkdfmtjapanese euc-jp x-euc-jp"),
    "iso2022_jp": ("水車は八時", "csiso2022jp iso-2022-jp"),
    "cp932": ("水車 ① ～ 髙", "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis"),
    "cp949": ("물레방아 똠", "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 "
              "ksc_5601 windows-949"),
}  # fmt: skip
GERMAN = "Die Mühle öffnet um acht; Gebühr 12 €."
READ_AS_LATIN = GERMAN.encode().decode("cp1252")
META = "<meta charset=windows-1252>"


def page(head, text=GERMAN, encoding="utf-8", before="<!doctype html><html><head>"):
    return f"{before}{head}<title>T</title></head><body><p>".encode("latin-1") + text.encode(encoding) + b"</p>"


def text_of(raw, **options):
    found, left_out = decoded(raw, **options)
    assert not left_out
    return found.rpartition("<p>")[2].removesuffix("</p>")


@pytest.mark.parametrize("encoding", LABELS)
def test_every_label_that_browsers_know(encoding):
    text, labels = LABELS[encoding]
    for label in labels.split():
        assert text_of(page(f"<meta charset='{label}'>", text, encoding)) == text, label
        assert (
            text_of(page(f"<META CONTENT='x; CHARSET={label.upper()}' http-equiv=Content-Type>", text, encoding))
            == text
        )


@pytest.mark.parametrize(
    "head",
    [
        "", f"<!-- {META} -->", f"<!x {META}", f"<? {META}", f"</ {META}", f"<script>var a = '{META}'</script>",
        '<script>var encoding = "base64", charset = "klingon"</script>',
        f"<script><!-- <script> </script> {META} --></script>", f"<style>@charset 'latin1'; {META}</style>",
        f"<title>{META}</title>", f"<textarea>{META}</textarea>", f"<iframe>{META}</iframe>", f"<plaintext>{META}",
        "<link rel=stylesheet charset=windows-1252 href=a>", "<script charset=windows-1252 src=a></script>",
        "<form accept-charset=windows-1252>", "charset=windows-1252 encoding=latin1", f'<div title="{META}"></div>',
        "<meta name=description content='text/html; charset=windows-1252'>", "<metax charset=windows-1252>",
        "<meta http-equiv=refresh content='9; charset=windows-1252'>", "</meta charset=windows-1252>",
        "<meta http-equiv=content-type content='charset=\"windows-1252'>", "<meta charset=klingon>",
        "<meta http-equiv=content-type content='charset=windows-1252' charset=utf-8>", "<meta charset=hex>",
        f"<meta charset=utf-8>{META}", "<meta charset=windows-1252/>", "<meta charset=utf-16>", "<meta charset=ucs-2>",
        "<meta char\0set=windows-1252>", f"<div {META}", f"<div>{'x' * 1_000}{META}", f"<img>{'<link>' * 200}{META}",
    ],
)  # fmt: skip
def test_declarations_that_browsers_do_not_read(head):
    assert text_of(page(head)) == GERMAN


@pytest.mark.parametrize(
    "head",
    [
        META, f"<!-- a -->{META}", f"<!-->{META} -->", f"<!--->{META} -->", f"<!-- a --!>{META} -->",
        f"<![CDATA[ > {META} ]]>", f"<noscript>{META}</noscript>", f"<svg>{META}</svg>", f"<template>{META}</template>",
        "<meta http-equiv=content-type content='text/html; charset = \"windows-1252\" ; x'>",
        "<META\nCHARSET\n=\n'L1'>",
        "<meta content='charset x; charset=latin1' http-equiv=content-type>", "<meta/charset='latin1'/>",
        "<meta charset=klingon><meta charset='  latin1 '>", "<meta charset=''><meta charset=latin1>",
        "<meta charset='windows&#45;1252'>", "<meta charset=x-user-defined>", f"<div title='a>b\"'>{META}",
        f"<script>{'x' * 70_000}</script>{META}", f"<!-- {'x' * 5_000} -->{META}", f"{'<link>' * 400}{META}",
        f"<div>{'x' * 900}{META}",
    ],
)  # fmt: skip
def test_declarations_that_browsers_read(head):
    assert text_of(page(head)) == READ_AS_LATIN


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (codecs.BOM_UTF8 + page(META), GERMAN),
        (page(META).decode().encode("utf-16"), GERMAN),
        (page(META).decode().encode("utf-16-be"), GERMAN),  # no mark
        (page("", before="<?xml version='1.0' encoding='latin1'?>"), READ_AS_LATIN),
        (page("<meta charset=utf-8>", before="<?xml version='1.0' encoding='latin1'?>"), GERMAN),
        (page("", before=" <?xml version='1.0' encoding='latin1'?>"), GERMAN),
        (page("", before="<?xml version='1.0' encoding='utf-16'?>"), GERMAN),
    ],
)
def test_marks_and_declarations_of_xml(raw, text):
    assert text_of(raw) == text


def test_in_xml_meta_counts_only_if_the_page_is_not_utf8():
    assert text_of(page(META), is_xml=True) == GERMAN
    assert text_of(page(META, GERMAN, "cp1252"), is_xml=True) == GERMAN
    before = "<?xml version='1.0' encoding='latin1'?>"
    assert text_of(page("<meta charset=utf-8>", GERMAN, "cp1252", before), is_xml=True) == GERMAN


@pytest.mark.parametrize(
    ("label", "raw", "text"),
    [
        ("latin1", b"\x81\x8d\x90", "\x81\x8d\x90"),
        ("windows-1255", b"\xca", "\u05ba"),
        ("koi8-u", b"\xae\xbe", "ўЎ"),
        ("gbk", b"\x80 \xa6\xd9\xa3\xa0", "€ ︐\u3000"),
        ("big5", b"\xa1\x45\xa1\xf2", "‧⊕"),
        ("euc-jp", b"\xad\xa1\xf9\xa1\xa1\xc1\xa1\xdd\x8f\xb0\xa1", "①纊～－丂"),
        ("iso-2022-jp", b"\x1b$B-!!A\x1b(I1\x1b(B", "①～ｱ"),
    ],
)
def test_characters_that_pythons_codecs_decode_otherwise(label, raw, text):
    assert text_of(f"<meta charset={label}><p>".encode() + raw + b"</p>") == text


@pytest.mark.parametrize(
    ("label", "raw", "text"),
    [
        ("utf-8", b"M\xfchle f\xfcr", "M\ufffdhle f\ufffdr"),
        ("utf-8", b"\xe2\x82 \xf0\x9f\x98", "\ufffd \ufffd"),
        ("shift_jis", b"\x81\xad\x81 \xa0\xff", "\ufffd\ufffd \ufffd\ufffd"),
        ("euc-kr", b"\x81\xff\x81@\xff", "\ufffd\ufffd@\ufffd"),
        ("windows-1253", b"\xd2", "\ufffd"),
    ],
)
def test_wrong_bytes_become_as_many_characters_as_in_browsers_and_are_counted(label, raw, text):
    found, left_out = decoded(f"<meta charset={label}>".encode() + b"The mill opens at eight. " + raw)
    assert found.endswith(f" {text}")
    assert left_out == {"undecodable characters": text.count("\ufffd")}


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", GERMAN),
        ("cp1251", "Мельница открывается в восемь часов утра."),
        ("cp932", "水車は八時に開きます。"),
        ("gb18030", "水车八点开门，入场费是十二元。"),
        ("cp949", "물레방아는 여덟 시에 문을 엽니다."),
        ("cp1250", "Młyn otwiera się o ósmej; wstęp kosztuje dwanaście złotych."),
    ],
)
def test_an_encoding_that_is_not_declared_is_guessed_and_said(encoding, text):
    found, left_out = decoded(page(f"<!-- {META} -->", text, encoding))
    assert text in found
    assert left_out == {"characters of a guessed encoding": sum(not character.isascii() for character in text)}


def test_a_given_encoding_counts_unless_the_page_is_utf8():
    assert text_of(page("", GERMAN, "cp1252"), encoding="cp1252") == GERMAN
    assert text_of(page(""), encoding="cp1252") == GERMAN
    assert text_of(page(META), encoding="utf-8") == READ_AS_LATIN


def test_a_damaged_page_is_still_utf8():
    found, left_out = decoded(page("").replace(b"</p>", b"\xff</p>"))
    assert f"{GERMAN}\ufffd" in found and left_out == {"undecodable characters": 1}


@pytest.mark.parametrize("label", ["csiso2022kr", "hz-gb-2312", "iso-2022-cn", "iso-2022-cn-ext", "iso-2022-kr"])
def test_encodings_that_browsers_refuse_are_refused(label):
    with pytest.raises(InputError, match=f"an HTML page in '{label}', which browsers do not decode; save it as UTF-8"):
        decoded(page(f"<meta charset={label}>"))


def test_a_page_of_another_encoding_than_it_declares_is_refused():
    with pytest.raises(InputError, match="an HTML page that is not in its encoding, utf-8; save it as UTF-8"):
        decoded(page("<meta charset=utf-8>", "水車は八時に開きます。" * 9, "euc_jp"))


@pytest.mark.parametrize(
    "tag",
    [
        "<!--", "<script>", "<a b='", "<a ", "<meta content='charset", "<script><!--<script></script>",
        "<?xml encoding", "<", "</script", "<!-", "<meta http-equiv=content-type content='charset ", "<a b = ",
    ],
)  # fmt: skip
def test_tags_without_ends_take_linear_time(tag):
    assert decoded(tag.encode() * 30_000)[0] == tag * 30_000
