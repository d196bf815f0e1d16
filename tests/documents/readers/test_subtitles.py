import pytest

from qrag_jax.documents.readers.subtitles import read_subtitles
from qrag_jax.types import InputError

SRT = """1
00:00:01,000 --> 00:00:02,000
<i>The tide model
uses</i>

2
00:00:02,500 --> 00:00:04,000
harmonic M2.

3
00:01:05,000 --> 00:01:06,000
{\\an8}No.

4
00:01:06,900 --> 00:01:08,000
No.

and a blank line in a cue."""


def test_cues_are_joined_to_sentences_with_the_time_of_the_first():
    text = "[00:00:01] The tide model uses harmonic M2.\n\n[00:01:05] No.\n\n[00:01:06] No.\n\n"
    text += "[00:01:06] and a blank line in a cue."
    for raw in (SRT, SRT.replace("\n", "\r\n"), f"\ufeff{SRT}"):
        assert read_subtitles(raw.encode()).text == text


def test_webvtt_gives_names_and_no_marks():
    raw = (
        "WEBVTT - talk\nKind: captions\n\nNOTE to the\neditor\n\nSTYLE\n::cue { color: red }\n\nintro\n"
        "00:01.000 --> 01:02.000 align:start\n<v Fred Hill>Hi &amp; welcome<00:00:01.500><c.red> all</c>.\n\n"
        "101:02:03.000 --> 101:02:04.000\n1 < 2 is <b>true</b>\n"
    )
    found = read_subtitles(raw.encode())
    assert found.text == "[00:00:01] Fred Hill: Hi & welcome all.\n\n[101:02:03] 1 < 2 is true"
    assert found.left_out == {"comments": 1}


def test_lines_that_roll_from_cue_to_cue_are_read_once():
    cues = [("00.0", "01.9", "the lamp"), ("01.9", "01.9", "the lamp\n"), ("01.9", "04.0", "the lamp\nis lit"),
            ("04.0", "06.0", "is lit\nat night."), ("08.0", "09.0", "at night.")]  # fmt: skip
    raw = "WEBVTT\n\n" + "\n\n".join(f"00:{start}00 --> 00:{end}00\n{text}" for start, end, text in cues)
    assert read_subtitles(raw.encode()).text == "[00:00:00] the lamp is lit at night.\n\n[00:00:08] at night."


def test_text_without_ends_of_sentences_is_divided():
    raw = "\n\n".join(f"{n}\n00:00:{n:02},000 --> 00:00:{n + 1:02},000\n" + "word " * 20 for n in range(50))
    text = read_subtitles(raw.encode()).text
    assert text.count("word") == 1_000 and max(map(len, text.split("\n\n"))) < 450


def test_a_file_without_subtitles_is_refused():
    with pytest.raises(InputError, match="no subtitles in it"):
        read_subtitles(b"WEBVTT\n\nSome text.\n")


def test_cues_without_blank_lines_and_signs_that_are_no_tags():
    raw = "1\n00:01,000 --> 00:02,000\nI <3 you. 5 > 4.\n2\n00:03,000 --> 00:04,000\nYes.\n00:05.000 --> 00:06.000\nNo."
    assert read_subtitles(raw.encode()).text == "[00:00:01] I <3 you. 5 > 4.\n\n[00:00:03] Yes.\n\n[00:00:05] No."
