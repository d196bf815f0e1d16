"""The parsers of `qrag`: one for its own help, and one of the verb that was typed. Imports nothing heavy.

A verb is one module, `qrag_jax/cli/VERB.py`, with a `VERB`: what its help says, its flags, and what runs it.
"""

import argparse
import difflib
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from qrag_jax import __version__
from qrag_jax.cli import flags
from qrag_jax.cli.terminal import say, shown_lines

_DESCRIPTION = """\
Find what answers a question in your own files, offline, and train retrievers that find scattered facts step by step.

  qrag find notes/ "Where is the key?"    the passages that answer a question; nothing has to be trained
  qrag index build notes.index notes/     keep the files cut and embedded: qrag find notes.index "Where is the key?"
  qrag ask notes/ "Where is the key?"     have a language model answer from them, with citations
  qrag demo                               train a retriever on simulated stories, measure it and ask it
"""
# In the order of `qrag --help`.
SUMMARIES = {
    "find": "find the passages of your own files that answer a question",
    "ask": "have a language model answer from your own files, with citations",
    "index": "keep your files cut and embedded, to be asked many times",
    "chunk": "cut text files, every chunk with its exact place",
    "boundaries": "how well the sections of documents are found",
    "hicbench": "questions with scattered evidence, by a language model",
    "study": "compare chunkers on questions: what they find beside what they cost",
    "demo": "learn to find facts hidden in speeches, and measure it",
    "train": "learn from your own data: to retrieve, where sections begin, their vectors, what to search",
    "eval": "score a trained retriever beside its baselines",
    "notes": "the notes that chunks get from other chunks: what an index has, and what they find",
    "llm": "how quick a language model is on this machine",
    "export": "write the encoders for sentence-transformers",
    "push": "share a run on the hub or in a folder",
    "pull": "fetch a run that was shared",
}
RENAMED = {"fit": "train", "points": "boundaries"}  # an older name of a verb -> its name
_NUM_EXAMPLES = 3  # under --help
# Before what stands behind `--`: argparse takes a word that opens with a dash for a flag there too. No argument has it.
_PLAIN = "\0"


@dataclass(frozen=True)
class Verb:
    """A verb of `qrag`, or one kind of it, as `tagger` of `qrag train`.

    Attributes:
        description: what it does and prints, in at most 15 lines.
        examples: command lines, one a line; the first ones stand under `--help`.
        flags: a table of them, as of `flags.add`.
        run: does it, and returns the exit code.
        details: what only `--help_all` says.
        choices: what a flag takes, by its name.
        renamed: an older name of a flag -> its name.
        kinds: what it does of several kinds, by the word that names one.
        summary: of a kind, one line.
        default_kind: the kind where none is named.
        usage: behind its name, in place of its arguments and `[flags]`; of several lines, one each.
    """

    description: str
    examples: str
    flags: str
    run: Callable[[argparse.Namespace], int]
    details: str = ""
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, "Verb"] = field(default_factory=dict)
    summary: str = ""
    default_kind: str | None = None
    usage: str = ""


class _Plain(argparse.ArgumentParser):
    """A parser whose errors cannot steer the terminal."""

    def error(self, message: str) -> NoReturn:
        """Ends the command with the usage and the reason, exit code 2."""
        super().error(shown_lines(message))


class Parser(_Plain):
    """The parser of a verb; `--help` is short, `--help_all` is whole.

    It shows what it was given as a terminal may see it: a shell puts names of files there (`qrag chunk *`).
    """

    def __init__(self, prog: str, verb: Verb) -> None:
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self.verb = verb
        self.rare = flags.add(self, verb.flags, verb.choices)
        if verb.kinds:
            self._add_kinds(verb.kinds)
        self.add_argument("--help_all", action=_HelpAll, help="explain all flags, and everything else there is to say")
        if self.usage is None:
            positionals = [_named(action) for action in self._actions if not action.option_strings]
            usage = verb.usage or " ".join([*positionals, "[flags]"])
            self.usage = "\n".join(f"{'       ' * (i > 0)}{prog} {line}" for i, line in enumerate(usage.split("\n")))

    def format_help(self) -> str:
        """The description, the flags that people set, and some examples."""
        helps = [action.help for action in self.rare]
        for action in self.rare:
            action.help = argparse.SUPPRESS
        try:
            lines = self.verb.examples.rstrip("\n").splitlines()
            commands = [i for i, line in enumerate(lines) if line.startswith(f"  {self.prog}")]
            shown = lines[: commands[_NUM_EXAMPLES]] if len(commands) > _NUM_EXAMPLES else lines
            more = f"{self.prog} --help_all explains {len(self.rare)} more flags" if self.rare else ""
            return self._formatted(self.verb.description, [*shown, *filter(None, ["", more])])
        finally:
            for action, text in zip(self.rare, helps, strict=True):
                action.help = text

    def format_help_all(self) -> str:
        """The description with its details, all flags and all examples."""
        whole = "\n".join(filter(None, (self.verb.description, self.verb.details)))
        return self._formatted(whole, self.verb.examples.splitlines())

    def flag_of(self, dest: str) -> str | None:
        """The flag of a destination; None where there is none."""
        names = {action.dest: action.option_strings[0] for action in self._actions if action.option_strings}
        return names.get(dest)

    def _formatted(self, description: str, epilog: Sequence[str]) -> str:
        self.description, self.epilog = description, "\n".join(epilog)
        return super().format_help()

    def _add_kinds(self, kinds: Mapping[str, Verb]) -> None:
        """The lines of the help that name the kinds of a verb."""
        self.usage = f"{self.prog} {{{','.join(kinds)}}} ..."
        group = self.add_subparsers(
            title="kinds",
            metavar="KIND",
            dest="kind",
            help="one of these, first of all",
            parser_class=argparse.ArgumentParser,
        )
        for name, kind in kinds.items():
            group.add_parser(name, help=kind.summary)


class _HelpAll(argparse.Action):
    """Prints the whole help and ends, as argparse's own help does."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: str | None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=more.get("help"))

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.format_help_all(), end="")
        parser.exit()


def main_parser() -> argparse.ArgumentParser:
    """The parser of `qrag` alone, which names the verbs and knows none of their flags."""
    parser = _Plain(
        prog="qrag",
        description=_DESCRIPTION,
        epilog="qrag VERB --help explains one. Exit codes: 0 done, 1 bad data or file, 2 wrong flag, config or path.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"qrag_jax {__version__}")
    group = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb")
    for name, summary in SUMMARIES.items():
        group.add_parser(name, help=summary)
    return parser


def load_verb(name: str) -> Verb:
    """A verb by its name; its module is imported now."""
    return importlib.import_module(f"qrag_jax.cli.{name}").VERB


def read(words: Sequence[str], prog: str, verb: Verb) -> tuple[Parser, dict[str, Any]]:
    """Reads the words behind a verb's name: flags and positionals in any order.

    Returns:
        The parser of the verb, or of the kind of it that they name, and the values by destination.

    Raises:
        SystemExit: of argparse: 0 after `--help` or `--help_all`, 2 after a wrong flag.
    """
    if verb.kinds:
        if words and words[0] in verb.kinds:
            return read(words[1:], f"{prog} {words[0]}", verb.kinds[words[0]])
        asks_for_help = bool(words) and words[0] in ("-h", "--help", "--help_all")
        if verb.default_kind is not None and not asks_for_help:
            return read(words, prog, verb.kinds[verb.default_kind])
        parser = Parser(prog, verb)
        parser.parse_args(words[:1] if asks_for_help else [])
        parser.error(f"say first which: {prog} {'|'.join(verb.kinds)} ({prog} KIND --help explains one)")
    parser = Parser(prog, verb)
    values = vars(parser.parse_intermixed_args(_normalise(words, parser)))
    return parser, {name: _unmarked(value) for name, value in values.items()}


def _named(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return {"*": f"[{name} ...]", "?": f"[{name}]", "+": f"{name} [...]"}.get(str(action.nargs), name)


def _normalise(argv: Sequence[str], parser: Parser) -> list[str]:
    """`--dry-run` is `--dry_run`; `--a.b=3`, when it is no flag of this verb's, is the override `a.b=3`.

    An older name of a flag is taken for its name, which is said. What stands behind `--` is no flag, and is marked by
    `_PLAIN`. A flag that is nearly one of this verb's ends the command, as argparse would, with the name that was
    probably meant.
    """
    known = {option for action in parser._actions for option in action.option_strings}
    takes_overrides = any(action.dest == "overrides" for action in parser._actions)
    result: list[str] = []
    for i, token in enumerate(argv):
        if token == "--":
            result += [_PLAIN + word for word in argv[i + 1 :]]
            break
        name, equals, value = token.partition("=")
        plain = name.replace("-", "_").replace("__", "--", 1)
        if name.startswith("--") and plain in parser.verb.renamed:
            new = parser.verb.renamed[plain]
            if any(word.partition("=")[0] == new for word in argv):
                parser.error(f"argument {new}: given twice: {plain} is its older name")
            say(f"note: {plain} is called {new} now")
            token = new + equals + value
        elif name.startswith("--") and plain in known:
            token = plain + equals + value
        elif name.startswith("--") and equals and takes_overrides:
            token = token.removeprefix("--")
        elif name.startswith("--") and (near := difflib.get_close_matches(plain, known, n=2)):
            parser.error(f"unrecognized arguments: {token} (did you mean {' or '.join(near)}?)")
        result.append(token)
    return result


def _unmarked(value: object) -> object:
    """An argument, or a list of them, without the mark of what stood behind `--`."""
    if isinstance(value, list):
        return [_unmarked(one) for one in value]
    return value.removeprefix(_PLAIN) if isinstance(value, str) else value
