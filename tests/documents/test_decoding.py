import codecs

import pytest

from qrag_jax.documents.decoding import decode
from qrag_jax.types import InputError

GERMAN = "Die Mühle am Fluß war groß und schön. Der Müller hieß Jörg."


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "gb18030", "shift_jis", "utf-16", "cp500", "koi8_r"])
@pytest.mark.parametrize("text", ["Mühle", GERMAN, "水車小屋", "Мельница", "a “quote”"])
def test_what_is_valid_utf8_is_utf8_whatever_encoding_is_named(text, encoding):
    assert decode("a", text.encode(), encoding) == (text, 0)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "cp1252"),
        (GERMAN, "mac_roman"),
        ("Мельница у реки", "cp1251"),
        ("Ёлка", "koi8_r"),
        ("水車小屋は川のそばに", "shift_jis"),
        ("磨坊坐落在河边", "gb18030"),
        ("Привет", "utf-16-le"),  # all its bytes are ASCII
        ("Plain", "utf-16-le"),
        ("plain", "cp500"),
        ("今天", "utf-7"),
        ("今天", "iso2022_jp"),
    ],
)
def test_other_text_is_in_the_encoding_that_is_named(text, encoding):
    assert decode("a", text.encode(encoding), encoding) == (text, 0)


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16-be"])
@pytest.mark.parametrize(
    ("mark", "written"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_a_byte_order_mark_decides(mark, written, encoding):
    assert decode("a", mark + GERMAN.encode(written), encoding) == (GERMAN, 0)


LOG = b"2024-01-01 10:00:00 connection accepted\n" * 9


@pytest.mark.parametrize(
    ("raw", "text", "number"),
    [
        (LOG + b"user \xff logged in", "user \ufffd logged in", 1),
        (LOG + b"user Ren\xe9 logged in", "user Ren\ufffd logged in", 1),
        (LOG + b"\xff\xfe\x80 data \x90", "\ufffd\ufffd\ufffd data \ufffd", 4),
        (LOG + b"half a sign: " + "€".encode()[:2], "half a sign: \ufffd", 2),
        (GERMAN.encode() + b" caf\xe9 r\xf4le", "caf\ufffd r\ufffdle", 2),  # most of it is UTF-8
        ("\ufffd was there before. ".encode() + b"\xff", "\ufffd was there before. \ufffd", 1),
    ],
)
def test_few_bad_bytes_are_replaced_and_counted(raw, text, number):
    found, num_bad = decode("a", raw, "utf-8")
    assert found.endswith(text) and num_bad == number


def test_a_bad_byte_of_the_named_encoding_is_counted_too():
    assert decode("a", GERMAN.encode("cp1252") + b"\x81", "cp1252") == (GERMAN + "\ufffd", 1)


@pytest.mark.parametrize(
    ("text", "encoding", "likely"),
    [
        (GERMAN, "cp1252", "cp1252"),
        ("“I don’t know,” she said — “it’s his.”", "cp1252", "cp1252"),
        ("Мельница стояла у реки, и мельник жил там.", "cp1251", "cp1251"),
        ("Мельница стояла у реки, и мельник жил там.", "koi8_r", "koi8-r"),
        ("水車小屋は川のそばにありました。", "shift_jis", "cp932"),
        ("磨坊坐落在河边，磨坊主和他的家人住在那里。", "gb18030", "gb18030"),
    ],
)
def test_a_file_of_another_encoding_is_refused_with_the_likely_one(text, encoding, likely):
    for other in ("utf-8", "ascii"):
        with pytest.raises(InputError, match=f"it looks like {likely}; save it as UTF-8, or name its encoding"):
            decode("a", text.encode(encoding), other)


@pytest.mark.parametrize("raw", [b"\xff", b"\x80\x81\x82" * 9, bytes(range(128, 256)), b"ab\xff\xfe\xfd"])
def test_what_is_mostly_undecodable_is_refused(raw):
    with pytest.raises(InputError, match="a: not UTF-8 at byte "):
        decode("a", raw, "utf-8")
