"""The parsers of `qrag`: one for its own help, and one for each verb. Imports nothing heavy.

A verb is one module, `qrag_jax/cli/VERB.py`, with a `VERB`: its help, its flags and the function that runs it.
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
Search your own files, ask questions about them, and train retrievers for long documents. Works offline.

  qrag find notes/ "Where is the key?"     find the passages that answer a question
  qrag index build notes.index notes/      store the files in an index, then: qrag find notes.index "Where is the key?"
  qrag ask notes/ "Where is the key?"      answer the question, with citations
  qrag demo                                train a small retriever on simulated stories, and measure it
"""
# In the order of `qrag --help`.
SUMMARIES = {
    "find": "find the passages in your files that answer a question",
    "ask": "answer a question from your files, with citations",
    "serve": "serve indexes over HTTP: a page, JSON, tools for agents",
    "mcp": "give an agent tools to search your files",
    "index": "store your files in an index, to search them many times",
    "chunk": "cut files into chunks with exact offsets",
    "boundaries": "score methods that find section boundaries",
    "hicbench": "build a benchmark of questions with scattered evidence",
    "study": "compare chunkers on questions: quality and cost",
    "demo": "train and measure a small retriever in one command",
    "train": "train a retriever, tagger, compressor, router or language model",
    "learn": "train a retriever on your own documents, without labels",
    "eval": "score a trained retriever against baselines",
    "notes": "show and measure the notes of chunks",
    "export": "write the encoders of a run for sentence-transformers",
    "push": "share a run on the hub or in a folder",
    "pull": "fetch a shared run",
}
RENAMED = {"fit": "train", "points": "boundaries"}  # an older name of a verb -> its name
_NUM_EXAMPLES = 3  # under --help
# Marks words after `--`: argparse takes those that begin with a dash for flags there too. No argument contains it.
_PLAIN = "\0"


@dataclass(frozen=True)
class Verb:
    """A verb of `qrag`, or a kind of a verb, such as `tagger` of `qrag train`.

    Attributes:
        description: what it does and prints, in at most 15 lines. The first paragraph comes before the usage.
        examples: command lines, one on each line; `--help` shows the first ones.
        flags: their table, as `flags.add` reads it.
        run: runs the verb and returns the exit code.
        details: further text for `--help_all`.
        choices: the values that a flag takes, by its name.
        renamed: old name of a flag -> new name.
        kinds: the kinds of a verb, by name.
        summary: one line about a kind.
        default_kind: the kind to run if none is named.
        usage: the text after the verb's name, instead of its arguments and `[flags]`; one usage on each line.
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
    """A parser whose help begins with what the command does, and whose errors contain no control characters."""

    def format_help(self) -> str:
        """The help: the first paragraph of the description, the usage, then the rest."""
        whole = self.description or ""
        first, _, self.description = whole.partition("\n\n")
        try:
            return f"{first}\n\n{super().format_help()}"
        finally:
            self.description = whole

    def error(self, message: str) -> NoReturn:
        """Ends the command with the usage and the reason, exit code 2."""
        super().error(shown_lines(message))


class Parser(_Plain):
    """The parser of a verb; `--help` is short, `--help_all` is complete.

    Its errors replace control characters, since arguments may be file names that a shell filled in (`qrag chunk *`).
    """

    def __init__(self, prog: str, verb: Verb) -> None:
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self.verb = verb
        self.rare = flags.add(self, verb.flags, verb.choices)
        if verb.kinds:
            self._add_kinds(verb.kinds)
        self.add_argument("--help_all", action=_HelpAll, help="show all flags, details and examples")
        if self.usage is None:
            positionals = [_named(action) for action in self._actions if not action.option_strings]
            usage = verb.usage or " ".join([*positionals, "[flags]"])
            self.usage = "\n".join(f"{'       ' * (i > 0)}{prog} {line}" for i, line in enumerate(usage.split("\n")))

    def format_help(self) -> str:
        """The short help: the description, the common flags and the first examples."""
        helps = [action.help for action in self.rare]
        for action in self.rare:
            action.help = argparse.SUPPRESS
        try:
            lines = self.verb.examples.rstrip("\n").splitlines()
            commands = [i for i, line in enumerate(lines) if line.startswith(f"  {self.prog}")]
            shown = lines[: commands[_NUM_EXAMPLES]] if len(commands) > _NUM_EXAMPLES else lines
            more = f"{self.prog} --help_all shows {len(self.rare)} more flags" if self.rare else ""
            return self._formatted(self.verb.description, [*shown, *filter(None, ["", more])])
        finally:
            for action, text in zip(self.rare, helps, strict=True):
                action.help = text

    def format_help_all(self) -> str:
        """The complete help: the description, the details, all flags and all examples."""
        whole = "\n".join(filter(None, (self.verb.description, self.verb.details)))
        return self._formatted(whole, self.verb.examples.splitlines())

    def flag_of(self, dest: str) -> str | None:
        """The flag of a destination, or None."""
        names = {action.dest: action.option_strings[0] for action in self._actions if action.option_strings}
        return names.get(dest)

    def _formatted(self, description: str, epilog: Sequence[str]) -> str:
        self.description, self.epilog = description, "\n".join(epilog)
        return super().format_help()

    def _add_kinds(self, kinds: Mapping[str, Verb]) -> None:
        """Adds the kinds of a verb to the help."""
        self.usage = f"{self.prog} {{{','.join(kinds)}}} ..."
        group = self.add_subparsers(
            title="kinds",
            metavar="KIND",
            dest="kind",
            help="give one of these first",
            parser_class=argparse.ArgumentParser,
        )
        for name, kind in kinds.items():
            group.add_parser(name, help=kind.summary)


class _HelpAll(argparse.Action):
    """Prints the complete help and ends the command, as argparse's `--help` does."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: str | None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=more.get("help"))

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.format_help_all(), end="")
        parser.exit()


def main_parser() -> argparse.ArgumentParser:
    """The parser of `qrag` without a verb. It lists the verbs and knows none of their flags."""
    parser = _Plain(
        prog="qrag",
        description=_DESCRIPTION,
        epilog="qrag VERB --help explains it. Exit codes: 0 done, 1 bad data or file, 2 wrong flag, config or path.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"qrag_jax {__version__}")
    group = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb")
    for name, summary in SUMMARIES.items():
        group.add_parser(name, help=summary)
    return parser


def load_verb(name: str) -> Verb:
    """Imports the module of a verb and returns the verb."""
    return importlib.import_module(f"qrag_jax.cli.{name}").VERB


def read(words: Sequence[str], prog: str, verb: Verb) -> tuple[Parser, dict[str, Any]]:
    """Parses the words after a verb's name: flags and positionals in any order.

    Returns:
        The parser of the verb, or of the kind that the words name, and the values by destination.

    Raises:
        SystemExit: by argparse, with code 0 after `--help` or `--help_all`, and 2 after a wrong flag.
    """
    if verb.kinds:
        if words and words[0] in verb.kinds:
            return read(words[1:], f"{prog} {words[0]}", verb.kinds[words[0]])
        asks_for_help = bool(words) and words[0] in ("-h", "--help", "--help_all")
        if verb.default_kind is not None and not asks_for_help:
            return read(words, prog, verb.kinds[verb.default_kind])
        parser = Parser(prog, verb)
        parser.parse_args(words[:1] if asks_for_help else [])
        parser.error(f"give the kind first: {prog} {'|'.join(verb.kinds)} ({prog} KIND --help explains a kind)")
    parser = Parser(prog, verb)
    values = vars(parser.parse_intermixed_args(_normalise(words, parser)))
    return parser, {name: _unmarked(value) for name, value in values.items()}


def _named(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return {"*": f"[{name} ...]", "?": f"[{name}]", "+": f"{name} [...]"}.get(str(action.nargs), name)


def _normalise(argv: Sequence[str], parser: Parser) -> list[str]:
    """Turns `--dry-run` into `--dry_run`, and `--a.b=3` into the override `a.b=3` if the verb has no such flag.

    Replaces the old name of a flag by the new one, with a note. Marks words after `--` by `_PLAIN`. Ends the command at
    a misspelt flag, as argparse would, and suggests the right one.
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
                parser.error(f"argument {new}: given twice; {plain} is its old name")
            say(f"note: {plain} is now called {new}")
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
    """An argument, or a list of arguments, without the mark of words after `--`."""
    if isinstance(value, list):
        return [_unmarked(one) for one in value]
    return value.removeprefix(_PLAIN) if isinstance(value, str) else value
