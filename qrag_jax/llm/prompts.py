"""Prompts as template files that a user can replace, and the fence that keeps what a document says data.

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
    """What is asked of a language model, with places for what changes.

    Attributes:
        name: of the prompt.
        system: the first message; empty where the prompt has none.
        user: the last message.
    """

    name: str
    system: str
    user: str

    @property
    def places(self) -> frozenset[str]:
        """Names of what must be put in, in the system message or the user's."""
        return frozenset(Template(self.system).get_identifiers() + Template(self.user).get_identifiers())

    @property
    def sha256(self) -> str:
        """Hash of the texts, hexadecimal: answers to prompts of other texts cannot be compared."""
        return sha256("\0".join((self.system, self.user)).encode()).hexdigest()

    def fill(self, **values: str) -> tuple[Message, ...]:
        """The messages with every place filled, without white space around them.

        What is put in is not searched for more places, so a `$question` in a document stays what it is.

        Raises:
            InputError: a place without a value, or a value without a place.
        """
        if differing := sorted(values.keys() ^ self.places):
            raise InputError(
                f"prompt {self.name!r}: has the places {_listed(self.places)}, was given {_listed(values)}: "
                f"{_listed(differing)} differ"
            )
        user = Message("user", Template(self.user).substitute(values).strip())
        if not self.system.strip():
            return (user,)
        return Message("system", Template(self.system).substitute(values).strip()), user


def load_prompt(name: str, folder: Path | None = None) -> PromptTemplate:
    """A prompt of ours, or of the user file by file.

    Args:
        name: "answer" and so on: `prompt_names` has all.
        folder: of the user's files. One that is called like ours stands in its place and must have the same places,
            both files of a prompt together; what it does not hold is ours.

    Raises:
        UsageError: no such prompt or folder, a file in the folder that replaces nothing, or a template that cannot be
            read, or lacks a place, or has one that nothing fills.
    """
    ours = _our_files()
    if name not in prompt_names():
        raise UsageError(f"prompt {name!r}: there is none; the prompts are {', '.join(prompt_names())}")
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
            f"{_listed(template.places)} (a dollar sign that is meant as one is written $$)",
            file=folder,
        )
    return replaced


def prompt_names() -> tuple[str, ...]:
    """Names of all prompts of ours."""
    return tuple(sorted({file.partition(".")[0] for file in _our_files()}))


def prompts_sha256(templates: Iterable[PromptTemplate]) -> str:
    """One hash, hexadecimal, of several prompts with their names; their order does not matter."""
    lines = sorted(f"{template.name} {template.sha256}\n" for template in templates)
    return sha256("".join(lines).encode()).hexdigest()


def fence(texts: Sequence[str], name: str, *, beside: Sequence[str] = (), heads: Sequence[str] = ()) -> tuple[str, str]:
    """Texts between marks that occur in none of them, so that no text can end itself and speak as the prompt does.

    A model may still believe what a text claims: marks tell data from orders, no more.

    Args:
        texts: passages of documents, whole, in the order wanted; none is allowed.
        name: what the mark is drawn from, such as the id of a question: the same mark whatever the texts are, unless
            one of them holds it.
        beside: other texts of the prompt that must not hold the mark, such as the question.
        heads: a line above each text, outside of its marks, such as `[1]`; none writes none.

    Returns:
        The mark (a text stands between a line `<mark>` and a line `</mark>`) and all texts, blank lines between them.
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
    """The conversation that asks a question about passages, which stand as data between marks.

    Args:
        template: with the places $mark, $passages and $question.
        passages: whole, in the order wanted; none is allowed.
        name: what the mark is drawn from; heads: as of `fence`.
        nothing: stands where there are no passages.
    """
    mark, fenced = fence(passages, name, beside=[question], heads=heads)
    return template.fill(mark=mark, passages=fenced or nothing, question=question)


def _mark(name: str, texts: Sequence[str]) -> str:
    plain = [_plain(text) for text in texts]
    digests = (sha256(f"{attempt} {name}".encode("utf-8", "surrogatepass")).hexdigest() for attempt in count())
    digits = (digest[:_MARK_DIGITS] for digest in digests)
    return "passage-" + next(mark for mark in digits if not any(mark in text for text in plain))


def _plain(text: str) -> str:
    """A text as a model may read it, that cares for no case, no width of letters and nothing that cannot be seen."""
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
        raise UsageError(f"{', '.join(unknown)} replaces no template; they are {', '.join(sorted(ours))}", file=folder)
    if not paths:
        raise UsageError(f"holds no template; it may hold {', '.join(sorted(ours))}", file=folder)
    return {path.name: _read_template(path) for path in paths}


def _read_template(path: Path) -> str:
    try:
        text = read_text_limited(path, MAX_CONFIG_BYTES, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read as UTF-8 text ({error})", file=path) from error
    if not Template(text).is_valid():
        raise UsageError("a dollar sign starts no place; one that is meant as a dollar sign is written $$", file=path)
    return text


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"${name}" for name in sorted(names)) or "(none)"
