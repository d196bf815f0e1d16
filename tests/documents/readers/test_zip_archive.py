import io
import struct
import zipfile

import pytest
from support.documents import tiny_zip

from qrag_jax.documents.readers import zip_archive as archive
from qrag_jax.documents.readers.zip_archive import Archive, member_name
from qrag_jax.types import InputError


def test_members_are_read_whole():
    found = Archive(tiny_zip({"a.xml": "<a/>", "b": b"\0\1"}))
    assert found.names() == ["a.xml", "b"] and found.read("b") == b"\0\1" and found.read_xml("a.xml") == b"<a/>"
    assert "a.xml" in found and "c" not in found and found.size("b") == 2


def twice():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("a", "1")
        file.writestr("a", "2")
    return content.getvalue()


def encrypted():
    content = bytearray(tiny_zip({"a": "1"}))
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"PK\x03\x04 and more", "a zip archive whose directory is missing or larger"),
        (
            lambda: b"PK\x05\x06" + bytes(8) + b"\xff" * 4 + bytes(6),
            "a zip archive whose directory is missing or larger",
        ),
        (
            lambda: tiny_zip({"a": "1"}).replace(b"PK\x01\x02", b"PK\x01\x09"),
            "a damaged zip archive .*; get the file again",
        ),
        (twice, "a zip archive with more than 10,000 members or a repeated name"),
        (lambda: tiny_zip({str(n): "" for n in range(10_001)}), "a zip archive with more than 10,000 members"),
        (encrypted, "a zip archive with encrypted members; save it without a password"),
    ],
)
def test_bad_archives_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        Archive(make())


def test_what_it_becomes_is_told_by_its_directory(monkeypatch):
    monkeypatch.setattr(archive, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(InputError, match="bytes unpack to 101, more than the 100 allowed; remove"):
        Archive(tiny_zip({"a": bytes(50), "b": bytes(51)}))


def test_a_directory_that_lies_gives_no_more_than_it_says():
    content = tiny_zip({"a": bytes(12_345)}).replace(struct.pack("<I", 12_345), struct.pack("<I", 10))
    with pytest.raises(InputError, match="'a' in it is damaged .*CRC.*; get the file again"):
        Archive(content).read("a")


@pytest.mark.parametrize("content", ["<!DOCTYPE a><a/>", '<a><!ENTITY b "c"></a>'])
def test_xml_with_entities_is_refused(content):
    for raw in (content, content.encode("utf-16"), content.encode("utf-16-be")):
        with pytest.raises(InputError, match="'a.xml' in it declares entities, so it may be hostile"):
            Archive(tiny_zip({"a.xml": raw})).read_xml("a.xml")


def test_large_xml_is_refused(monkeypatch):
    monkeypatch.setattr(archive, "MAX_XML_BYTES", 3)
    with pytest.raises(
        InputError, match="'a.xml' in it has 4 bytes of XML, more than the 3 that are read; split the document"
    ):
        Archive(tiny_zip({"a.xml": "<a/>"})).read_xml("a.xml")


def test_references_are_relative_to_the_member_that_has_them():
    assert member_name("OEBPS/a.opf", "text/../b.xhtml") == "OEBPS/b.xhtml"
    assert member_name("", "a") == "a" and member_name("a/b", "../../../c") == "../../c"  # a name that nothing has
