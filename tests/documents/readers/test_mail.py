from base64 import b64encode
from email.message import EmailMessage
from email.policy import SMTP

import pytest

from qrag_jax.documents.converted import ReadOptions
from qrag_jax.documents.kinds import is_installed
from qrag_jax.types import InputError

pytestmark = pytest.mark.skipif(not is_installed(), reason="the extra `documents` is not installed")
HEAD = "# Grüße\n\nFrom: Jörg <j@x.de>\nTo: a@b.c\nDate: Mon, 01 Jan 2024 10:00:00 +0000\n\n"
TEXT = "Der Schlüssel liegt im Garten, weil Jörg ihn dort vergessen hat; " * 3


def read(raw, encoding="utf-8"):
    from qrag_jax.documents.readers.mail import read_mail

    return read_mail(raw if isinstance(raw, bytes) else raw.as_bytes(policy=SMTP), ReadOptions(encoding))


def mail():
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "Grüße", "Jörg <j@x.de>", "a@b.c"
    message["Date"] = "Mon, 01 Jan 2024 10:00:00 +0000"
    return message


@pytest.mark.parametrize("charset", ["utf-8", "cp1252"])
@pytest.mark.parametrize("transfer", ["quoted-printable", "base64"])
def test_the_head_and_the_text_are_decoded(charset, transfer):
    message = mail()
    message.set_content(TEXT, charset=charset, cte=transfer)
    found = read(message)
    assert (found.text, found.left_out) == (HEAD + TEXT.strip(), {})


def test_one_of_two_forms_is_read():
    message = mail()
    message.set_content(TEXT)
    message.add_alternative(f"<p>{TEXT.replace('Schlüssel', '<b>Schlüssel</b>')}</p>", subtype="html")
    assert read(message).text == HEAD + TEXT.strip()
    message = mail()
    message.set_content("Your program cannot show HTML.")
    message.add_alternative(f"<html><body><h2>Ort</h2><p>{TEXT}</p></body></html>", subtype="html")
    assert "Schlüssel liegt" in (text := read(message).text) and "cannot show" not in text and "## Ort" in text


def test_html_alone_is_read_without_tags():
    message = mail()
    message.set_content(f"<p>{TEXT}</p>", subtype="html", charset="cp1252")
    assert read(message).text == HEAD + TEXT.strip()


def test_attachments_are_counted_and_mails_in_mails_read():
    inner = EmailMessage()
    inner["Subject"], inner["From"] = "Earlier", "k@x.de"
    inner.set_content("The lamp was lit.")
    message = mail()
    message.set_content(TEXT)
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="a.pdf")
    message.add_attachment("notes", filename="notes.txt")
    message.add_attachment(inner)
    found = read(message)
    assert found.text == f"{HEAD}{TEXT.strip()}\n\n## Earlier\n\nFrom: k@x.de\n\nThe lamp was lit."
    assert found.left_out == {"attachments": 2}


def test_text_without_a_true_charset_is_read():
    for declared, written, given in (
        ("x-nope", "cp1252", "utf-8"),
        ("\0''; charset*=a\0''b", "utf-8", "utf-8"),
        ("idna", "utf-8", "utf-8"),
        ("us-ascii", "utf-8", "utf-8"),
        ("us-ascii", "koi8_r", "koi8_r"),
    ):
        text = "Привет" if written == "koi8_r" else "Grüße"
        raw = f"Subject: Hi\nContent-Type: text/plain; charset={declared}\n\n".encode() + text.encode(written)
        assert read(raw, given).text == f"# Hi\n\n{text}"
    assert read("Subject: Grüße\n\nHi.".encode()).text == "# Grüße\n\nHi."
    assert read("Subject: Grüße\n\nHi.".encode("latin-1")).text == "# Grüße\n\nHi."


def test_what_is_no_mail_is_refused():
    with pytest.raises(InputError, match="not a mail"):
        read(b"Just some text.\n\nMore.")
    with pytest.raises(InputError, match="a mail without text"):
        read(b"Message-ID: <1@x>\n\n")


def test_lines_of_the_head_that_take_long_are_not_parsed():
    words = "=?utf-8?q?a?= " * 9_000
    assert read(f"Subject: {words}\n\nHi.".encode()).text == f"# {words.strip()}\n\nHi."
    with pytest.raises(InputError, match="describes a part in more than 20,000 characters"):
        read(f"Subject: Hi\nContent-Type: text/plain{'; a=b' * 9_000}\n\nHi.".encode())


@pytest.mark.parametrize(
    ("charset", "codec", "text"),
    [
        ("gb2312", "gbk", "朱镕基"), ("iso-8859-1", "cp1252", "It’s “fine”"), ("x-sjis", "cp932", "①日本語"),
        ("ks_c_5601-1987", "cp949", "똠방각하"), ("windows-874", "cp874", "ภาษา"), ("hz", "hz", "你好"),
    ],
)  # fmt: skip
def test_charsets_are_those_of_browsers(charset, codec, text):
    word = f"=?{charset}?B?{b64encode(text.encode(codec)).decode()}?="
    head = f"Subject: Re {word} {word}, x\nContent-Type: text/plain; charset={charset}\n\n"
    assert read(head.encode() + text.encode(codec)).text == f"# Re {text}{text}, x\n\n{text}"


def test_a_wrong_byte_does_not_change_the_other_letters():
    head = b"Subject: Hi =?utf-8?B?a?=\nContent-Type: text/plain; charset=utf-8\n\n"
    found = read(head + TEXT.encode() + b"\xff")
    assert found.text == f"# Hi =?utf-8?B?a?=\n\n{TEXT}\ufffd"
    assert found.left_out == {"undecodable characters": 1}


def test_reports_and_parts_without_a_boundary_are_read():
    report = "Subject: Hi\nContent-Type: multipart/report; boundary=B\n\n--B\nContent-Type: message/delivery-status\n\n"
    assert read(f"{report}Action: failed\n\nStatus: 5.1.1\n\n--B--".encode()).text.endswith(
        "Action: failed\n\nStatus: 5.1.1"
    )
    assert read(b"Subject: Hi\nContent-Type: multipart/mixed\n\n--B\n\nwords").text == "# Hi\n\n--B\n\nwords"


def test_declarations_of_a_charset_in_parts_and_other_texts_are_read():
    for declared in ("text/plain; charset*=us-ascii'en'utf-8", "text/markdown; charset=utf-8"):
        assert read(f"Subject: Hi\nContent-Type: {declared}\n\nGrüße".encode()).text == "# Hi\n\nGrüße"
