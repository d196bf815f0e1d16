"""The text of subtitles (SubRip, WebVTT): cues joined to sentences, each paragraph with the time of its first cue."""

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qrag_jax.documents.converted import Converted, ReadOptions, cleaned
from qrag_jax.documents.decoding import decode_part
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError

_TIME = r"((?:\d{1,4}:)?\d{1,2}:\d{2})[.,](\d{1,3})"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_NEXT = r"[ \t]*[\d:]{4,13}[.,]\d{1,3}\s*-->"
_BETWEEN = re.compile(rf"\n{{2,}}|\n(?=\d{{1,9}}[ \t]*\n{_NEXT})|(?<!\d)\n(?={_NEXT})")  # some files lack blank lines
_VOICE, _TAG = re.compile(r"<v(?:\.[^<>\s]*)?\s+([^<>]+)>"), re.compile(r"</?[A-Za-z][^<>]*>|<\d[\d:.]*>|\{\\[^{}]*\}")
_ENDS = re.compile(r"[.!?…。！？؟।]['\"”’»)\]]*\Z")  # a sentence
_MAX_CHARS = 300  # of a paragraph in which no sentence ends
_MOMENT = 0.1  # seconds: between a cue and the next that begins with its last line, and of a cue that only repeats


@dataclass(frozen=True)
class _Cue:
    """A cue: the time that is shown, its start and end in seconds, and its lines."""

    time: str
    start: float
    end: float
    lines: list[str]


def read_subtitles(raw: bytes, encoding: str = "utf-8") -> Converted:
    """The text of a file of subtitles: paragraphs that begin with a time, as `[00:01:02]`.

    Args:
        encoding: of a file that is not UTF-8.
    """
    text, missing = decode_part(raw, encoding)
    paragraphs: list[str] = []
    is_open = False
    for cue in _cues(text, missing):
        words = " ".join(cue.lines)
        if is_open:
            paragraphs[-1] += f" {words}"
        else:
            paragraphs.append(f"[{cue.time}] {words}")
        is_open = not _ENDS.search(words[-10:]) and len(paragraphs[-1]) < _MAX_CHARS
    if not paragraphs:
        raise InputError("no subtitles in it (`00:01:02,500 --> 00:01:04,000` and text); rename it to end in .txt")
    return Converted(cleaned("\n\n".join(paragraphs)), left_out=missing)


def _cues(text: str, missing: dict[str, int]) -> Iterator[_Cue]:
    """The cues with words, without lines that roll from one cue into the next."""
    before: _Cue | None = None
    for block in _BETWEEN.split(text.strip("\n")):
        lines = block.split("\n")
        place = next((place for place, line in enumerate(lines[:2]) if _TIMES.match(line)), None)
        if place is None:
            kind = lines[0].split(" ")[0].rstrip()
            if kind == "NOTE":
                missing["comments"] = missing.get("comments", 0) + 1
            elif before is not None and kind not in ("STYLE", "REGION"):  # the rest of a cue with a blank line
                before = _Cue(before.time, before.start, before.end, _shown(lines))
                yield before
            continue
        times = _TIMES.match(lines[place])
        assert times is not None
        cue = _Cue(
            _padded(times[1]), _seconds(times[1], times[2]), _seconds(times[3], times[4]), _shown(lines[place + 1 :])
        )
        is_copy = before is not None and cue.start - before.end < _MOMENT and before.lines[-1:] == cue.lines[:1]
        is_rolling = is_copy and (len(cue.lines) > 1 or cue.end - cue.start < _MOMENT)
        new = _Cue(cue.time, cue.start, cue.end, cue.lines[1:] if is_rolling else cue.lines)
        before = cue
        if new.lines:
            yield new


def _shown(lines: list[str]) -> list[str]:
    """The lines as they are shown: without marks, with the name of who speaks."""
    plain = (html.unescape(_TAG.sub("", _VOICE.sub(r"\1: ", line))).strip() for line in lines)
    return [line for line in plain if line]


def _padded(time: str) -> str:
    """A time with hours."""
    return ":".join(part.zfill(2) for part in ("0:" * (time.count(":") == 1) + time).split(":"))


def _seconds(time: str, fraction: str) -> float:
    hours, minutes, seconds = map(int, _padded(time).split(":"))
    return 3600 * hours + 60 * minutes + seconds + float(f"0.{fraction}")


def _load(options: ReadOptions) -> Callable[[bytes], Converted]:
    return lambda raw: read_subtitles(raw, options.encoding)


KIND = FileKind((".srt", ".vtt"), "subtitles", (), _load, looks_like_text=True, is_light=True)
