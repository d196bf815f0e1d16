"""Training conversations for a language model that finds boundaries: windows of headed documents with the right rows.

    write_examples("train.jsonl", make_examples(read_headed("wikitext2:PATH", "removed"), count))

Each document is used as it is, then several times with its sections of level 1 in another order, and as often in
another order with large parts left out. So a few documents give many examples, and a model cannot memorise the order of
topics. A text longer than a window continues in the next window, after a random number of residual lines.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from qrag_jax.annotate.hichunk import RESIDUAL_SHARE
from qrag_jax.annotate.numbered_lines import LEVELS, Lines, Row, format_rows, number_lines
from qrag_jax.annotate.windows import lines_prompt
from qrag_jax.data.corpora.headed_documents import HeadedDocument
from qrag_jax.files.whole_file import write_whole
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.types import CountTokens, InputError, Message, UsageError, check_fields

Kind = Literal["plain", "shuffled", "omitted"]
_WORDS = re.compile(r"\W+")


@dataclass(frozen=True)
class ExamplesConfig:
    """Settings of the examples. A pair gives the smallest and largest number to draw.

    Attributes:
        window_tokens: of the lines of a window, including residual lines.
        max_chars: characters of a sentence to show.
        num_orders: number of shuffled orders, and of orders with omissions.
        min_tokens: other orders leave out sections of level 1 with at most this many tokens.
        kept_parts: number of first parts of level 2 that an omission keeps of a section.
        kept_lines: number of first lines of each of these parts.
        residual_sections: number of last sections of level 1 to take residual lines from.
        residual_parts: number of parts of level 2 in each, from its beginning and its end.
        residual_lines: number of first lines of each of these parts; fewer if they exceed 1/8 of the window.
        seed: of all draws.
        prompts: folder of the user's templates; None uses the built-in ones.
    """

    window_tokens: int = 8_192
    max_chars: int = 100
    num_orders: int = 3
    min_tokens: int = 50
    kept_parts: tuple[int, int] = (5, 15)
    kept_lines: tuple[int, int] = (15, 25)
    residual_sections: tuple[int, int] = (1, 2)
    residual_parts: tuple[int, int] = (2, 5)
    residual_lines: tuple[int, int] = (1, 20)
    seed: int = 0
    prompts: Path | None = None

    def __post_init__(self) -> None:
        pairs = ("kept_parts", "kept_lines", "residual_sections", "residual_parts", "residual_lines")
        least = {"window_tokens": 64, "max_chars": 1, "num_orders": 0, "min_tokens": 0}
        check_fields(self, "examples", positive=pairs, at_least=least)
        for name in pairs:
            low, high = getattr(self, name)
            if low > high:
                raise UsageError("give the smaller one first", field=f"examples.{name}", value=(low, high))


@dataclass(frozen=True)
class Example:
    """A window and its right answer.

    Attributes:
        document: its id.
        kind: the order of its lines.
        messages: the conversation; the last message is the answer.
        num_residual: number of residual lines in the window.
        num_lines: number of lines in the window.
        rows: of the answer, with line numbers of the window.
    """

    document: str
    kind: Kind
    messages: tuple[Message, ...]
    num_residual: int
    num_lines: int
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class _Unit:
    """A sentence or heading, and the level of the part that it begins; 0 if it begins none."""

    text: str
    level: int
    is_title: bool


def make_examples(
    documents: Iterable[HeadedDocument], count: CountTokens, config: ExamplesConfig | None = None
) -> Iterator[Example]:
    """The examples of documents, one document after another. The same document, seed and config give the same examples.

    Args:
        documents: in one view. With removed headings, no row is a title.
        count: counts tokens like the model to train.
        config: None uses the defaults.

    Raises:
        InputError: a document without a boundary, which would teach a model to find none.
        UsageError: as `load_prompt`.
    """
    config = config or ExamplesConfig()
    template = load_prompt("hichunk", config.prompts)
    for document in documents:
        if not document.points:
            raise InputError(f"{document.id}: has no sections; leave this document out")
        for kind, order, rng in _orders(document, count, config):
            yield from _windows(document.id, kind, order, count, template, config, rng)


def write_examples(path: str | Path, examples: Iterable[Example]) -> int:
    """Writes examples as JSON Lines: {"messages": [{"role", "content"}, ...], "document", "kind"}; returns the number.

    Raises:
        InputError: the file cannot be written.
    """
    lines = [json.dumps(_to_json(example), ensure_ascii=False) + "\n" for example in examples]
    write_whole(path, "".join(lines))
    return len(lines)


def _to_json(example: Example) -> dict[str, object]:
    messages = [{name: asdict(one)[name] for name in ("role", "content")} for one in example.messages]
    return {"messages": messages, "document": example.document, "kind": example.kind}


def _orders(
    document: HeadedDocument, count: CountTokens, config: ExamplesConfig
) -> Iterator[tuple[Kind, list[_Unit], random.Random]]:
    """The document as it is, and its other orders, if it has two or more sections."""
    units = _units(document)
    yield "plain", units, random.Random(f"{config.seed} plain {document.id}")
    opening, sections = _parts(units, 1)
    sections = [one for one in sections if sum(count(unit.text) for unit in one) > config.min_tokens]
    for number in range(config.num_orders if len(sections) > 1 else 0):
        kinds: tuple[Kind, Kind] = ("shuffled", "omitted")
        for kind in kinds:
            rng = random.Random(f"{config.seed} {kind} {number} {document.id}")
            shuffled = rng.sample(sections, len(sections))
            taken = [_omitted(one, config, rng) for one in shuffled] if kind == "omitted" else shuffled
            yield kind, [*opening, *(unit for one in taken for unit in one)], rng


def _units(document: HeadedDocument) -> list[_Unit]:
    texts, level_of = document.text.texts(), dict(document.points)
    titles = {unit: path[-1] for (unit, _), path in zip(document.points, document.paths, strict=True)}
    return [
        _Unit(text, min(level_of.get(place, 0), len(LEVELS)), place in titles and _same(text, titles[place]))
        for place, text in enumerate(texts)
    ]


def _same(text: str, title: str) -> bool:
    """True if the line is the heading, with or without marks."""
    return _WORDS.sub(" ", text).strip() == _WORDS.sub(" ", title).strip()


def _parts(units: Sequence[_Unit], level: int) -> tuple[list[_Unit], list[list[_Unit]]]:
    """(the units before the first point of this level, the parts that such points begin)."""
    starts = [place for place, unit in enumerate(units) if unit.level == level]
    borders = [*starts, len(units)]
    return list(units[: borders[0]]), [list(units[start:end]) for start, end in pairwise(borders)]


def _omitted(section: Sequence[_Unit], config: ExamplesConfig, rng: random.Random) -> list[_Unit]:
    """The beginnings of the first parts of a section; the text before its first part of level 2 counts as a part."""
    opening, parts = _parts(section, 2)
    clips = [opening, *parts][: rng.randint(*config.kept_parts)]
    return [unit for clip in clips for unit in clip[: rng.randint(*config.kept_lines)]]


def _windows(
    document: str,
    kind: Kind,
    units: Sequence[_Unit],
    count: CountTokens,
    template: PromptTemplate,
    config: ExamplesConfig,
    rng: random.Random,
) -> Iterator[Example]:
    most = config.window_tokens // RESIDUAL_SHARE
    texts = [unit.text for unit in units]
    lines = number_lines(texts, count, max_chars=config.max_chars, tokens=config.window_tokens - most)
    first, residual = 0, list[int]()
    while first < len(lines):
        stop = lines.stop(first, config.window_tokens - sum(lines.costs[line] for line in residual))
        shown = [*residual, *range(first, stop)]
        new = range(len(residual), len(shown))
        rows = [Row(n, units[shown[n]].level, units[shown[n]].is_title) for n in new if units[shown[n]].level]
        prompt = lines_prompt(template, lines.written(shown), first=len(residual), last=len(shown) - 1)
        messages = (*prompt, Message("assistant", format_rows(rows)))
        yield Example(document, kind, messages, len(residual), len(shown), tuple(rows))
        first, residual = stop, _residual(units[:stop], lines, most, config, rng)


def _residual(units: Sequence[_Unit], lines: Lines, most: int, config: ExamplesConfig, rng: random.Random) -> list[int]:
    """Residual lines, in order: the first lines of some parts of the last sections; the first line has level 1."""
    tops = [place for place, unit in enumerate(units) if unit.level == 1][-rng.randint(*config.residual_sections) :]
    clips: list[range] = []
    for start, end in pairwise([*tops, len(units)]):
        inner = [place for place in range(start + 1, end) if units[place].level == 2]
        parts = [range(*borders) for borders in pairwise([start, *inner, end])]
        size = rng.randint(*config.residual_parts)
        head = min(len(parts), (size + 1) // 2)
        clips += [*parts[:head], *parts[max(head, len(parts) - size // 2) :]]
    num_lines = rng.randint(*config.residual_lines)
    while num_lines:
        found = [line for clip in clips for line in clip[:num_lines]]
        if sum(lines.costs[line] for line in found) <= most:
            return found
        num_lines //= 2
    return []
