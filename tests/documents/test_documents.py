import codecs
import io
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from support.documents import tiny_pdf

from qrag_jax.documents import kinds
from qrag_jax.documents.converted import ReadOptions
from qrag_jax.documents.found import Found, Only, Skipped
from qrag_jax.documents.kinds import is_installed
from qrag_jax.documents.read import (
    DocumentFile,
    encoding_of,
    find_files,
    left_out,
    page_of,
    read_bytes,
    read_document,
    read_files,
    read_options,
    reader_of,
    refuse_part,
)
from qrag_jax.files.reading import InputTooLarge, read_with, reading
from qrag_jax.types import Arg, Document, InputError, UsageError


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def names(documents, root):
    return [os.path.relpath(document.id, root) for document in documents]


def test_folders_are_read_recursively_and_sorted(tmp_path):
    for name in ("b.txt", "a/z.md", "a/b/c.TXT", "A.md", "picture.png", ".hidden.txt", ".git/x.md", "a.txt.bak"):
        write(tmp_path / name, "Some text.")
    with pytest.warns(UserWarning, match=r"did not read 2 files of other types \(1 .bak, 1 .png\); passed"):
        assert names(read_files([tmp_path]), tmp_path) == ["A.md", "a/b/c.TXT", "a/z.md", "b.txt"]


def test_order_of_the_paths_is_kept_and_files_are_read_once(tmp_path):
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        write(tmp_path / name, "Some text.")
    documents = read_files([tmp_path / "sub", tmp_path / "b.txt", tmp_path, str(tmp_path / "sub" / ".." / "a.txt")])
    assert names(documents, tmp_path) == ["sub/c.txt", "b.txt", "a.txt"]


def test_one_path_need_not_be_a_list(tmp_path):
    path = write(tmp_path / "a.txt", "Some text.")
    assert read_files(str(path)) == read_files(path) == read_files([path])


def test_a_named_file_is_read_whatever_its_ending(tmp_path):
    document = read_files([write(tmp_path / "README", "Read me.")])[0]
    assert (document.id, document.text) == (str(tmp_path / "README"), "Read me.")
    assert document.metadata == {"path": str(tmp_path / "README")}


def test_text_is_kept_as_it_is_but_for_the_byte_order_mark(tmp_path):
    document = read_files([write(tmp_path / "a.txt", b"\xef\xbb\xbfOne.\r\n\r\nTw\xc3\xb6.\x0c")])[0]
    assert document.text == "One.\r\n\r\nTwö.\x0c"


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [
        ("latin-1", b"\xc4pfel."),
        ("CP1252", b"\xc4pfel."),
        ("utf-16", codecs.BOM_UTF16_LE + "Äpfel.".encode("utf-16-le")),
        ("utf-16", codecs.BOM_UTF16_BE + "Äpfel.".encode("utf-16-be")),
        ("utf-16-be", codecs.BOM_UTF16_BE + "Äpfel.".encode("utf-16-be")),
        ("utf-8-sig", codecs.BOM_UTF8 + "Äpfel.".encode()),
        ("mac_roman", b"\x80pfel."),
    ],
)
def test_other_encodings(tmp_path, encoding, raw):
    assert [document.text for document in read_files(write(tmp_path / "a.txt", raw), encoding)] == ["Äpfel."]


def test_encodings_of_asia_keep_their_line_ends(tmp_path):
    text = "今天很冷。\r\n我们回家。\r"
    for encoding in ("gb18030", "gb2312", "utf-7"):
        assert read_files(write(tmp_path / "a.txt", text.encode(encoding)), encoding)[0].text == text


@pytest.mark.parametrize(
    ("encoding", "raw", "message"),
    [
        ("ascii", b"abc \xe9", "a.txt: not ascii at byte 4; it looks like cp1252; .*encoding='cp1252'"),
        ("gb18030", b"abc\xff\xff", "a.txt: not gb18030 at byte 3"),
        ("utf-16-le", b"a\0b", "a.txt: not utf-16-le at byte 2"),
        ("undefined", b"\xe4bc", "a.txt: not undefined at byte 0"),
        ("latin-1", b"\xe9bc\0d", "a.txt: zero byte at byte 3; this is not a text file"),
        ("utf-16-le", b"a\0b\0\0\0c\0", "a.txt: zero byte at byte 5; this is not"),
        ("utf-16", "ab\0c".encode(f"utf-16-{sys.byteorder[0]}e"), "a.txt: zero byte at byte 5; this is not"),
        ("utf-16", codecs.BOM_UTF16_BE + b"\0a\0\0\0b", "a.txt: zero byte at byte 5; this is not"),
        ("utf-8", "é\0".encode(), "a.txt: zero byte at byte 2; this is not"),
        (
            "utf-8",
            "Plain text.".encode("utf-16-le"),
            "a.txt: zero byte at byte 1; it looks like utf-16-le: .*encoding=",
        ),
        ("latin-1", b" \n\xa0", "a.txt: empty document"),
    ],
)
def test_bad_files_of_other_encodings_are_refused(tmp_path, encoding, raw, message):
    with pytest.raises(InputError, match=message) as error:
        read_files(write(tmp_path / "a.txt", raw), encoding)
    assert not isinstance(error.value, UsageError)


def test_blank_files_are_kept_on_demand(tmp_path):
    for name, raw in (("a.txt", b"Some text."), ("b.md", b"\xef\xbb\xbf \r\n"), ("c.md", b"")):
        write(tmp_path / name, raw)
    assert [document.text for document in read_files(tmp_path, keep_blank=True)] == ["Some text.", " \r\n", ""]
    with pytest.raises(InputError, match="b.md: empty document; leave this file out"):
        read_files(tmp_path, strict=True)


def test_a_file_of_another_encoding_names_the_argument_that_gives_it(tmp_path):
    for encoding in ("utf-8", "ascii"):
        with pytest.raises(InputError, match="a.txt: not ") as error:
            read_files(write(tmp_path / "a.txt", b"\xe9"), encoding)
        assert any(isinstance(part, Arg) and part.name == "encoding" for part in error.value.remedy)


@pytest.mark.parametrize("encoding", ["utf-9", "", "hex", "rot13", "zlib", "a\0b"])
def test_unknown_encodings_are_usage_errors(tmp_path, encoding):
    with pytest.raises(UsageError, match="Python knows no text encoding of that name; give one such as utf-8"):
        read_files(write(tmp_path / "a.txt", "Some text."), encoding)


def test_standard_input_is_read_once_and_in_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("a.txt"), "In a file.")
    write(Path("-"), "In a file of that name.")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffTypéd.".encode("utf-8"))))
    documents = read_files(["a.txt", "-", "-", "./-"])
    assert [(document.id, document.text) for document in documents] == [
        ("a.txt", "In a file."),
        ("-", "Typéd."),
        ("./-", "In a file of that name."),
    ]


@pytest.mark.parametrize(("raw", "message"), [(b"\xe9", "-: not UTF-8 at byte 0"), (b" ", "-: empty document")])
def test_bad_standard_input_is_refused(monkeypatch, raw, message):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    with pytest.raises(InputError, match=message):
        read_files("-")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="-: standard input is closed"):
        read_files("-")


def test_loops_of_links_end(tmp_path):
    write(tmp_path / "a" / "a.txt", "Some text.")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    (tmp_path / "b").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "c.txt").symlink_to(tmp_path / "a" / "a.txt")
    with read_with(follow_links=True), pytest.warns(UserWarning, match="1 without an ending"):  # it leads nowhere
        assert len(read_files([tmp_path])) == 1


@pytest.fixture
def linked(tmp_path):
    """A folder of documents with links out of it."""
    write(tmp_path / "elsewhere" / "a.txt", "Some text.")
    write(tmp_path / "docs" / "own.txt", "Own text.")
    (tmp_path / "docs" / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "docs" / "key.md").symlink_to(write(tmp_path / "id_rsa", "A private key."))
    (tmp_path / "docs" / "nowhere.txt").symlink_to(tmp_path / "nowhere")
    return tmp_path / "docs"


def test_links_in_a_folder_are_named_once_and_not_followed(linked, tmp_path):
    with pytest.warns(UserWarning) as caught:
        assert names(read_files([linked]), tmp_path) == ["docs/own.txt"]
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith(f"3 links in folders were not followed ({linked}/link, {linked}/key.md, ")
    assert "use qrag_jax.files.reading.read_with(follow_links=True) to follow them" in message


def test_links_are_followed_where_that_was_asked_for(linked, tmp_path):
    (linked / "nowhere.txt").unlink()
    with read_with(follow_links=True):
        assert names(read_files([linked]), tmp_path) == ["docs/key.md", "docs/link/a.txt", "docs/own.txt"]
    assert not reading().follow_links


def test_a_link_that_is_named_itself_is_read(linked):
    assert [one.text for one in read_files([linked / "key.md", linked / "link"])] == ["A private key.", "Some text."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc \xe9t\xe9", "bad.txt: not UTF-8 at byte 4; it looks like cp1252"),
        (b"\xef\xbb\xbfabc \xff", "bad.txt: not UTF-8 at byte 7"),
        ("Hé.".encode("utf-16") + b"x", "bad.txt: not utf-16 at byte 8"),
        (b"abc\0def", "bad.txt: zero byte at byte 3"),
        (b"", "bad.txt: empty document"),
        (b"\xef\xbb\xbf \r\n\x0c", "bad.txt: empty document"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, message):
    write(tmp_path / "good.txt", "Some text.")
    write(tmp_path / "bad.txt", content)
    for paths, strict in (([tmp_path], True), ([tmp_path, tmp_path / "bad.txt"], False)):  # the second names it
        with pytest.raises(InputError, match=message) as error:
            read_files(paths, strict=strict)
        assert not isinstance(error.value, UsageError)
    with pytest.warns(UserWarning, match=rf"left out 1 file in folders .*{message}.*; strict=True refuses"):
        assert names(read_files([tmp_path]), tmp_path) == ["good.txt"]


def test_missing_paths_and_empty_folders_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="absent.txt: no such file or folder"):
        read_files([tmp_path / "absent.txt"])
    with pytest.raises(UsageError, match="no file of a type that is read in folders"):
        read_files([tmp_path])
    with pytest.raises(UsageError, match="no path given"):
        read_files([])
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    with pytest.raises(UsageError, match="loop.txt: no such file"):
        read_files([tmp_path / "loop.txt"])


def test_dangling_links_and_pipes_are_refused(tmp_path):
    (tmp_path / "link.txt").symlink_to(tmp_path / "nowhere.txt")
    with (
        read_with(follow_links=True),
        pytest.raises(InputError, match="link.txt: not a regular file, or a dangling link"),
    ):
        read_files([tmp_path])
    (tmp_path / "link.txt").unlink()
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match="pipe.txt: not a regular file"):
        read_files([tmp_path])
    with pytest.raises(UsageError, match="pipe.txt: neither a file nor a folder"):
        read_files([tmp_path / "pipe.txt"])


@pytest.mark.parametrize("name", ["a.txt", "-"])
def test_what_is_too_large_is_refused_before_it_is_held(tmp_path, monkeypatch, name):
    (tmp_path / "a.txt").write_bytes(b"")
    os.truncate(tmp_path / "a.txt", 200 * 2**30)  # no block of the disk
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper((tmp_path / "a.txt").open("rb")))
    with pytest.raises(InputError) as error:
        read_files(name if name == "-" else tmp_path)
    limit = "zero byte at byte 0" if name == "-" else "has more than 4,294,967,296 bytes; .*max_input_gb"
    assert error.match(f"{name}: {limit}")


def test_zeros_are_told_from_a_text_at_once(tmp_path):
    write(tmp_path / "a.txt", b"Some text.")
    os.truncate(tmp_path / "a.txt", 2**31)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="a.txt: zero byte at byte 10;"):
        read_files(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_all_documents_together_have_a_limit(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.txt", b"Some text.")
    with read_with(max_bytes=30):
        assert len(read_files(tmp_path)) == 3
    with read_with(max_bytes=29), pytest.raises(InputTooLarge, match="all documents up to .*2.txt: has more than 29"):
        read_files(tmp_path)


def test_unreadable_files_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", "Some text.")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="a.txt: cannot be read .Permission denied"):
        read_files([path])


def test_what_is_found_is_told_without_opening_anything(tmp_path):
    for name in ("b.txt", "sub/a.md", "c.dat", "sub/d.DAT", "Makefile"):
        write(tmp_path / name, "Some text.")
    os.mkfifo(tmp_path / "pipe.txt")
    found = find_files([tmp_path, "-", tmp_path / "c.dat"])
    at = [(os.path.relpath(file.id, tmp_path) if file.path else file.id, file.named) for file in found.files]
    assert at == [("b.txt", False), ("pipe.txt", False), ("sub/a.md", False), ("-", True), ("c.dat", True)]
    assert (found.others, found.skipped, found.links) == ({".dat": 2, "": 1}, (), ())


def test_a_member_that_is_named_too_is_refused_like_what_is_named(tmp_path):
    write(tmp_path / "good.txt", "Some text.")
    bad = write(tmp_path / "bad.txt", "")
    assert [file.named for file in find_files([tmp_path, bad]).files] == [True, False]


def test_what_was_left_out_is_reported_once_in_place_of_warnings(tmp_path):
    for name, raw in (("a.txt", b"Some text."), ("b.txt", b""), ("c.md", b"\xff"), ("d.dat", b"x")):
        write(tmp_path / name, raw)
    reports = []
    assert len(read_files(tmp_path, report=reports.append)) == 1
    (found,) = reports
    assert [(Path(one.id).name, one.reason[:20]) for one in found.skipped] == [
        ("b.txt", "empty document; leav"), ("c.md", "not UTF-8 at byte 0;"),
    ]  # fmt: skip
    assert found.others == {".dat": 1}


def test_a_folder_with_nothing_good_says_why(tmp_path):
    for number in range(4):
        write(tmp_path / f"{number}.txt", "")
    with pytest.raises(InputError, match=r"none of 4 files could be read: .*0.txt: empty .* \| .*2.txt: .* \| \.\."):
        read_files(tmp_path)


def test_a_folder_that_cannot_be_read_is_left_out_of_another_and_refused_itself(tmp_path, monkeypatch):
    write(tmp_path / "good.txt", "Some text.")
    write(tmp_path / "closed" / "a.txt", "Some text.")
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.warns(UserWarning, match=r"closed: cannot be read \(Permission denied\); change its permissions"):
        assert names(read_files(tmp_path), tmp_path) == ["good.txt"]
    for paths, strict in ((tmp_path / "closed", False), (tmp_path, True)):
        with pytest.raises(InputError, match="closed: cannot be read"):
            read_files(paths, strict=strict)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", "Some text.")
    stat = os.fstat

    def changing(number):
        found = stat(number)
        path.write_text("Some other text.")
        return found

    monkeypatch.setattr(os, "fstat", changing)
    with pytest.raises(InputError, match="a.txt: changed while it was read; try again"):
        read_bytes(DocumentFile(str(path), path, True))


def test_bytes_that_were_read_before_are_not_read_again(tmp_path):
    file = DocumentFile("a.txt", tmp_path / "a.txt", True)
    assert read_document(file, raw=b"Some text.").text == "Some text."


def test_pages_are_told_by_the_place_of_a_character():
    document = Document("a.pdf", "One.\n\nThree.", {"pages": (0, 6, 6)})  # page 2 is blank
    assert [page_of(document, start) for start in (0, 5, 6, 11)] == [1, 1, 3, 3]
    assert page_of(Document("a.pdf", "One.", {"pages": [0]}), 2) == 1  # as a corpus keeps it
    assert page_of(Document("a.txt", "One."), 2) is None


@pytest.mark.skipif(not is_installed(), reason="the extra `documents` is not installed")
def test_other_kinds_than_texts_are_read_with_their_pages_and_what_is_left_out(tmp_path):
    write(tmp_path / "a.pdf", tiny_pdf([["One."], [], ["Three."]]))
    write(tmp_path / "b.txt", "Some text.")
    write(tmp_path / "scan.pdf", tiny_pdf([[]]))
    with pytest.warns(UserWarning) as caught:
        first, second = read_files(tmp_path)
    assert (first.text, second.text) == ("One.\n\n\n\nThree.", "Some text.")
    assert first.metadata == {
        "path": str(tmp_path / "a.pdf"),
        "converted": "pdf",
        "pages": (0, 6, 8),
        "left_out": {"pages without a character (pictures or blank)": 1},
    }
    assert [page_of(first, start) for start in (0, 8)] == [1, 3] and page_of(second, 0) is None
    (message,) = [str(warning.message) for warning in caught]
    assert "scan.pdf: a scanned PDF: 1 page without a character" in message
    assert (
        "read 1 file in part" in message
        and "a.pdf: left out: pages without a character (pictures or blank): 1" in message
    )


def test_without_the_extra_what_it_reads_is_counted_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds.FileKind, "is_installed", False)
    path = write(tmp_path / "a.pdf", tiny_pdf([["One."]]))
    write(tmp_path / "b.txt", "Some text.")
    with pytest.warns(UserWarning, match=r"did not read 1 file of other types \(1 .pdf: pip install 'qrag_jax\[doc"):
        assert len(read_files(tmp_path)) == 1
    with pytest.raises(InputError, match=r"a.pdf: a PDF: its reader is not installed; pip install"):
        read_files(path)


def test_what_reads_a_file_is_named_with_its_versions():
    text = DocumentFile("a.txt", None, True)
    assert (
        reader_of(text, b"Text.", ReadOptions("latin-1"))
        == reader_of(text, b"Text.", ReadOptions("L1"))
        == "text 2, iso8859-1"
    )
    assert [encoding_of(name) for name in ("text 1, iso8859-1", "1 pdf 1, pypdfium2 5.0, latin-1")] == ["iso8859-1"] * 2
    assert [encoding_of(name) for name in ("text 1, nope", "refused", "utf-8", "text 1, hex")] == [None] * 4
    if is_installed():
        assert reader_of(DocumentFile("a.pdf", None, True), b"%PDF-1.4", ReadOptions()).startswith("pdf 2, pypdfium2 ")


def test_a_file_that_is_too_large_to_be_converted_is_refused(tmp_path):
    path = write(tmp_path / "a.pdf", b"%PDF-1.4")
    os.truncate(path, 200 * 10**6 + 1)
    with pytest.raises(InputError, match="a.pdf: has more than 200,000,000 bytes"):
        read_files(path)


def test_a_folder_whose_names_may_be_listed_and_no_more_is_told_of(tmp_path, monkeypatch):
    write(tmp_path / "sub" / "a.txt", "A.")
    write(tmp_path / "b.txt", "B.")
    (tmp_path / "sub").chmod(0o444)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # a relative path asks for no rights above
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)  # root may look into everything
    try:
        with pytest.warns(UserWarning, match=r"left out 1 file in folders \(sub/a\.txt: "):
            assert [document.id for document in read_files(".")] == ["b.txt"]
    finally:
        os.seteuid(was)
        (tmp_path / "sub").chmod(0o755)


NAMES = ["docs/reports/a.md", "docs/reports/old/b.md", "docs/how_to/notes.md", "reports.md"]


@pytest.mark.parametrize(
    ("patterns", "taken"),
    [
        ([], [0, 1, 2, 3]),
        (["reports/*"], [0, 1]),
        (["docs/reports/*"], [0, 1]),
        (["old/*"], [1]),
        (["*.md"], [0, 1, 2, 3]),
        (["notes.md", "a.*"], [0, 2]),
        (["report?.md"], [3]),
        (["[ab].md"], [0, 1]),
    ],
)
def test_which_names_patterns_take(patterns, taken):
    assert Only(patterns).of_names(NAMES) == [NAMES[i] for i in taken]


def test_patterns_and_names_match_in_either_form_of_unicode():
    names = ["nfc/Größe.md", "nfd/Gro\u0308ße.md", "각.md", "\u1100\u1161\u11a8.md", "other.md"]
    for pattern in ("Größe*", "Gro\u0308ße.m?"):
        assert Only([pattern]).of_names(names) == names[:2]
    for pattern in ("각*", "\u1100\u1161\u11a8.md", "?.md"):
        assert Only([pattern]).of_names(names) == names[2:4]


def test_a_pattern_is_no_beginning_and_no_regular_expression():
    with pytest.raises(UsageError, match=r"matches none of 4 documents \(docs/reports/a.md, ") as error:
        Only(["report", "note..md"]).of_names(NAMES)
    assert (error.value.field, error.value.value) == ("only", ("report", "note..md"))


def test_only_what_is_asked_for_is_read(tmp_path, monkeypatch, recwarn):
    """A bad file of another name is as if it were not there, a bad one of such a name is still told."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("Mary has it.")
    (tmp_path / "docs/how_to/notes.md").write_bytes(b"\xff")
    (tmp_path / "docs/picture.png").write_bytes(b"\x89PNG")
    assert [one.id for one in read_files("docs", only=["reports/*"])] == NAMES[:2]
    assert not recwarn.list
    with pytest.warns(UserWarning, match="left out 1 file in folders"):
        assert [one.id for one in read_files("docs", only=["a.md", "notes.md"])] == NAMES[:1]


def test_what_was_left_out_is_told_of_such_names_alone():
    found = Found((), (Skipped("a.md", "blank"), Skipped("b.md", "blank")), {".png": 2})
    assert Only(["a.*"]).of_found(found) == Found((), (Skipped("a.md", "blank"),))
    assert Only([]).of_found(found) == found


@pytest.mark.skipif(not is_installed(), reason="the extra `documents` is not installed")
def test_strict_refuses_a_file_that_is_read_in_part(tmp_path):
    path = write(tmp_path / "a.pdf", tiny_pdf([["One."], []]))
    with pytest.raises(
        InputError, match=r"a.pdf: read in part \(left out: pages without a character .*: 1\); leave out "
    ):
        read_files(path, strict=True)


def test_content_that_is_left_out_on_purpose_is_counted_but_not_refused():
    document = Document("a.html", "Text.", {"left_out": {"pictures": 2}})
    assert left_out(document) == {"pictures": 2}
    refuse_part(document)
    with pytest.raises(InputError, match=r"left out: equations: 1\);"):
        refuse_part(Document("a.html", "Text.", {"left_out": {"equations": 1, "pictures": 2}}))


def test_an_index_of_an_earlier_version_names_what_is_left_out_in_phrases():
    document = Document("a.pdf", "Text.", {"left_out": ("1,200 equations", "most letters of 1 page")})
    assert left_out(document) == {"equations": 1200, "most letters of 1 page": 1}


def test_options_are_those_that_are_given_then_those_of_the_earlier_reader():
    options = ReadOptions("utf-8", html="article", fields=("a b", "c,d"))
    kind = kinds.FileKind((".x",), "a test", (), lambda _: None, uses=("html", "fields"))  # type: ignore
    with patch.object(kinds, "_kind", lambda name: kind):
        name = f"1 {kinds.reader_of('x', options)}, utf-8"
        assert kinds.reader_of("x", ReadOptions(comments=True)) == "x 1"
    assert encoding_of(name) == "utf-8" and read_options("utf-8", name) == options
    with read_with(html="page"):
        assert read_options("utf-8", name) == replace(options, html="page")
    assert read_options("utf-8") == ReadOptions()


def test_a_mixed_folder_is_read_file_by_file(tmp_path, recwarn):
    write(tmp_path / "a.txt", "Die Mühle öffnet früh.")
    write(tmp_path / "b.txt", "Der Müller schläft noch.".encode("cp1252"))
    write(tmp_path / "c.csv", "Wer;Wo\nJörg;Köln\n".encode("cp1252"))
    write(tmp_path / "d.txt", "Ein Tor für Jörg.".encode("utf-16"))
    texts = [one.text for one in read_files(tmp_path, "cp1252")]
    assert texts == ["Die Mühle öffnet früh.", "Der Müller schläft noch.", "Wer: Jörg\nWo: Köln", "Ein Tor für Jörg."]
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=r"left out 2 files in folders .*b.txt: not UTF-8 at byte 5; it looks like cp1252"
    ):
        assert [one.text for one in read_files(tmp_path)] == [texts[0], texts[3]]


def test_bad_bytes_are_said_and_refused_on_demand(tmp_path):
    log = write(tmp_path / "a.log", b"10:00:00 connection accepted\n" * 9 + b"user \xff logged in\n")
    with pytest.warns(UserWarning, match="read 1 file in part .*a.log: left out: undecodable bytes: 1"):
        (document,) = read_files(tmp_path)
    assert document.text.endswith("user \ufffd logged in\n") and document.metadata["left_out"] == {
        "undecodable bytes": 1
    }
    for path in (tmp_path, log):
        with pytest.raises(
            InputError, match=r"a.log: read in part \(left out: undecodable bytes: 1\); leave out strict"
        ):
            read_files(path, strict=True)


def test_all_types_of_text_are_read_in_folders(tmp_path):
    names_ = ["a.adoc", "b.markdown", "c.MDX", "d.org", "e.rst", "f.tex", "g.text", "h.py", "i.yaml", "readme"]
    for name in names_:
        write(tmp_path / name, "import x from 'y'\n\n<Tag/> The lamp.")
    found = read_files(tmp_path)
    assert names(found, tmp_path) == names_ and {one.text for one in found} == {"import x from 'y'\n\n<Tag/> The lamp."}


def test_tables_records_notebooks_and_subtitles_are_converted_in_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.run", None)
    write(tmp_path / "a.csv", "name,town\nJo,Rome\n")
    write(tmp_path / "b.ipynb", '{"cells": [{"cell_type": "code", "source": ["x = 1"], "outputs": [{"text": "1"}]}]}')
    write(tmp_path / "c.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nThe lamp.\n")
    write(tmp_path / "d.json", '{"title": "Mill", "n": 3}')
    reports = []
    texts = [one.text for one in read_files(tmp_path, report=reports.append)]
    assert texts == ["name: Jo\ntown: Rome", "```\nx = 1\n```", "[00:00:01] The lamp."]
    assert reports[0].others == {".json": 1} and reports[0].lossy[0].left_out == {"outputs": 1}
    with read_with(fields=("title",), outputs=True):
        texts = [one.text for one in read_files(tmp_path)]
    assert texts[1:] == ["```\nx = 1\n```\n\n```\n1\n```", "[00:00:01] The lamp.", "Mill"]
    assert read_files(tmp_path / "d.json")[0].text == "title: Mill\nn: 3"  # named
    with pytest.raises(InputError, match=r"d.json: not JSON: .*line 1"):
        read_files(write(tmp_path / "d.json", "{"))


@pytest.mark.skipif(not is_installed(), reason="the extra `documents` is not installed")
def test_html_on_standard_input_is_read_as_html(monkeypatch):
    page = "<!DOCTYPE html><html><body><p>The <b>lamp</b> is lit.</p></body></html>"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(page.encode())))
    assert read_files("-")[0].text == "The lamp is lit."
