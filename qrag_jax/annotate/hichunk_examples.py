"""Conversations from which a language model learns to find points: windows of headed documents and their right rows.

    write_examples("train.jsonl", make_examples(read_headed("wikitext2:PATH", "removed"), count))

Each document is gone through as it is, then some times with its sections of level 1 in another order, and as often in
another order with much of each left out: few documents become many, and the order of their topics cannot be learnt by
heart. What does not fit into a window goes on in the next one behind residual lines, more or fewer of them each time.
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
    """What examples are made of a document; pairs are the least and the most of what is drawn.

    Attributes:
        window_tokens: of the lines of a window, residual ones among them.
        max_chars: of a sentence.
        num_orders: shuffled, and with omissions, each.
        min_tokens: sections of level 1 with no more are left out of other orders.
        kept_parts: of level 2 that an omission keeps of a section, the first ones.
        kept_lines: of each of these, the first ones.
        residual_sections: of level 1 that residual lines are of, the last ones.
        residual_parts: of level 2 in each, from its beginning and its end.
        residual_lines: of each of these, the first ones; fewer where they have over 1/8 of the window.
        seed: of all draws.
        prompts: folder of the user's templates; None takes ours.
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
                raise UsageError("the larger one last", field=f"examples.{name}", value=(low, high))


@dataclass(frozen=True)
class Example:
    """A window and its right answer.

    Attributes:
        document: its id.
        kind: how its lines were ordered.
        messages: the conversation, with the answer as its last one.
        num_residual: lines of the window that were read before.
        num_lines: of the window.
        rows: of the answer, by numbers of the window.
    """

    document: str
    kind: Kind
    messages: tuple[Message, ...]
    num_residual: int
    num_lines: int
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class _Unit:
    """A sentence or heading, and the level of the part that it begins, 0 for none."""

    text: str
    level: int
    is_title: bool


def make_examples(
    documents: Iterable[HeadedDocument], count: CountTokens, config: ExamplesConfig | None = None
) -> Iterator[Example]:
    """The examples of documents, one document after the other; the same for the same document, seed and config.

    Args:
        documents: in one view. Of removed headings no row is a title.
        count: tokens of a text, as of the model that will learn.
        config: None takes the defaults.

    Raises:
        InputError: a document without a point, from which a model would learn that there is none.
        UsageError: as `load_prompt`.
    """
    config = config or ExamplesConfig()
    template = load_prompt("hichunk", config.prompts)
    for document in documents:
        if not document.points:
            raise InputError(f"{document.id}: no section: leave this document out")
        for kind, order, rng in _orders(document, count, config):
            yield from _windows(document.id, kind, order, count, template, config, rng)


def write_examples(path: str | Path, examples: Iterable[Example]) -> int:
    """Writes examples as JSONL, lines {"messages": [{"role", "content"}, ...], "document", "kind"}; gives their number.

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
    """The document as it is, and its other orders; one with no two sections has none."""
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
    """The line is the heading, whatever marks it has."""
    return _WORDS.sub(" ", text).strip() == _WORDS.sub(" ", title).strip()


def _parts(units: Sequence[_Unit], level: int) -> tuple[list[_Unit], list[list[_Unit]]]:
    """(what stands before the first point of a level, the parts that such points begin)."""
    starts = [place for place, unit in enumerate(units) if unit.level == level]
    borders = [*starts, len(units)]
    return list(units[: borders[0]]), [list(units[start:end]) for start, end in pairwise(borders)]


def _omitted(section: Sequence[_Unit], config: ExamplesConfig, rng: random.Random) -> list[_Unit]:
    """The beginnings of the first parts of a section; that before its first part of level 2 is one of them."""
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
    """Lines before a cut: of the last sections some parts, of these the first lines; rising, the first of level 1."""
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
