"""Prompts as template files that a user can replace, and marks that separate document text from instructions.

A prompt `NAME` is up to two files, `NAME.system.txt` and `NAME.user.txt`: plain text with places like `$question`.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from itertools import count
from pathlib import Path
from string import Template

from qrag_jax.files.reading import MAX_CONFIG_BYTES, read_text_limited
from qrag_jax.types import InputError, Message, UsageError

_FILE = re.compile(r"[a-z_]+\.(system|user)\.txt")
_MARK_DIGITS = 8
_UNSEEN = ("Cf", "Mn")  # format characters; marks on letters, variation selectors among them


@dataclass(frozen=True)
class PromptTemplate:
    """The messages to a language model, with places to fill.

    Attributes:
        name: of the prompt.
        system: the first message; empty if the prompt has none.
        user: the last message.
    """

    name: str
    system: str
    user: str

    @property
    def places(self) -> frozenset[str]:
        """Names of the places in both messages."""
        return frozenset(Template(self.system).get_identifiers() + Template(self.user).get_identifiers())

    @property
    def sha256(self) -> str:
        """Hash of both texts, hexadecimal. Answers to prompts with another hash cannot be compared."""
        return sha256("\0".join((self.system, self.user)).encode()).hexdigest()

    def fill(self, **values: str) -> tuple[Message, ...]:
        """The messages with every place filled, without surrounding white space.

        Inserted text is not searched for more places, so a `$question` in a document stays unchanged.

        Raises:
            InputError: a place without a value, or a value without a place.
        """
        if differing := sorted(values.keys() ^ self.places):
            raise InputError(
                f"prompt {self.name!r}: has the places {_listed(self.places)}, but got {_listed(values)}; "
                f"{_listed(differing)} differ"
            )
        user = Message("user", Template(self.user).substitute(values).strip())
        if not self.system.strip():
            return (user,)
        return Message("system", Template(self.system).substitute(values).strip()), user


def load_prompt(name: str, folder: Path | None = None) -> PromptTemplate:
    """Loads a built-in prompt, or the user's version of its files.

    Args:
        name: of the prompt, such as "answer"; `prompt_names` lists all.
        folder: of the user's files. Each replaces the built-in file with the same name; missing files stay built-in.
            The files of a prompt together must have the same places as the built-in ones.

    Raises:
        UsageError: no such prompt or folder, a file in the folder that replaces nothing, or a template that cannot be
            read, lacks a place or has an unknown one.
    """
    ours = _our_files()
    if name not in prompt_names():
        raise UsageError(f"prompt {name!r}: no such prompt; the prompts are {', '.join(prompt_names())}")
    template = PromptTemplate(name, ours.get(f"{name}.system.txt", ""), ours[f"{name}.user.txt"])
    if folder is None:
        return template
    theirs = _read_folder(folder, ours)
    system = theirs.get(f"{name}.system.txt", template.system)
    replaced = PromptTemplate(name, system, theirs.get(f"{name}.user.txt", template.user))
    missing, unknown = template.places - replaced.places, replaced.places - template.places
    if missing or unknown:
        faults = [f"{_listed(missing)} missing"] * bool(missing) + [f"{_listed(unknown)} unknown"] * bool(unknown)
        raise UsageError(
            f"prompt {name!r}: {', '.join(faults)}; its files together need exactly the places "
            f"{_listed(template.places)} (write a plain dollar sign as $$)",
            file=folder,
        )
    return replaced


def prompt_names() -> tuple[str, ...]:
    """Names of all built-in prompts."""
    return tuple(sorted({file.partition(".")[0] for file in _our_files()}))


def prompts_sha256(templates: Iterable[PromptTemplate]) -> str:
    """One hash, hexadecimal, of several prompts with their names, in any order."""
    lines = sorted(f"{template.name} {template.sha256}\n" for template in templates)
    return sha256("".join(lines).encode()).hexdigest()


def fence(texts: Sequence[str], name: str, *, beside: Sequence[str] = (), heads: Sequence[str] = ()) -> tuple[str, str]:
    """Puts texts between marks that occur in none of them, so no text can end its mark and pose as the prompt.

    A model may still believe what a text claims. Marks only separate data from instructions.

    Args:
        texts: complete passages of documents, in the order of the prompt; may be empty.
        name: seed of the mark, such as the id of a question. The same name gives the same mark, unless a text contains
            it.
        beside: other texts of the prompt that must not contain the mark, such as the question.
        heads: a line above each text, outside its marks, such as `[1]`; empty writes none.

    Returns:
        The mark (each text is between a line `<mark>` and a line `</mark>`), and all texts, separated by blank lines.
    """
    mark = _mark(name, [*texts, *beside, *heads])
    above = [f"{head}\n" for head in heads] or [""] * len(texts)
    return mark, "\n\n".join(f"{head}<{mark}>\n{text}\n</{mark}>" for head, text in zip(above, texts, strict=True))


def passages_prompt(
    template: PromptTemplate,
    question: str,
    passages: Sequence[str],
    name: str,
    *,
    heads: Sequence[str] = (),
    nothing: str = "",
) -> tuple[Message, ...]:
    """The conversation that asks a question about passages, which are between marks.

    Args:
        template: with the places $mark, $passages and $question.
        passages: complete, in the order of the prompt; may be empty.
        name, heads: as in `fence`.
        nothing: text to insert if there are no passages.
    """
    mark, fenced = fence(passages, name, beside=[question], heads=heads)
    return template.fill(mark=mark, passages=fenced or nothing, question=question)


def _mark(name: str, texts: Sequence[str]) -> str:
    plain = [_plain(text) for text in texts]
    digests = (sha256(f"{attempt} {name}".encode("utf-8", "surrogatepass")).hexdigest() for attempt in count())
    digits = (digest[:_MARK_DIGITS] for digest in digests)
    return "passage-" + next(mark for mark in digits if not any(mark in text for text in plain))


def _plain(text: str) -> str:
    """A text without case, letter width and invisible characters, which a model may ignore."""
    if text.isascii():
        return text.lower()
    seen = (letter for letter in unicodedata.normalize("NFKD", text) if unicodedata.category(letter) not in _UNSEEN)
    return unicodedata.normalize("NFKC", "".join(seen)).casefold()


@cache
def _our_files() -> dict[str, str]:
    folder = resources.files("qrag_jax.llm").joinpath("prompts")
    return {file.name: file.read_text("utf-8") for file in folder.iterdir() if _FILE.fullmatch(file.name)}


def _read_folder(folder: Path, ours: dict[str, str]) -> dict[str, str]:
    """The user's templates by file name."""
    if not folder.is_dir():
        raise UsageError("no such folder; give one with templates like answer.user.txt", file=folder)
    paths = sorted(folder.glob("*.txt"))
    if unknown := [path.name for path in paths if path.name not in ours]:
        remedy = f"the templates are {', '.join(sorted(ours))}"
        raise UsageError(f"{', '.join(unknown)} replaces no template", file=folder, remedy=remedy)
    if not paths:
        raise UsageError("contains no template", file=folder, remedy=f"the templates are {', '.join(sorted(ours))}")
    return {path.name: _read_template(path) for path in paths}


def _read_template(path: Path) -> str:
    try:
        text = read_text_limited(path, MAX_CONFIG_BYTES, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read as UTF-8 text ({error})", file=path) from error
    if not Template(text).is_valid():
        raise UsageError("contains a dollar sign without a place; write a plain dollar sign as $$", file=path)
    return text


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"${name}" for name in sorted(names)) or "(none)"
