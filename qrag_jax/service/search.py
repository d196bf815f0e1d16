"""Searches files or an index for questions, one after another: `qrag find` and `qrag ask`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qrag_jax.data.questions.asked import Asked, read_asked
from qrag_jax.documents.read import STDIN
from qrag_jax.errors import Arg
from qrag_jax.index.index import Index, open_index
from qrag_jax.index.methods import Show
from qrag_jax.index.options import AskOptions, Found, SearchOptions
from qrag_jax.names import RETRIEVERS
from qrag_jax.search.answer import Answer, NothingFound
from qrag_jax.service.cutting import CutOptions, chunking_of
from qrag_jax.types import EncoderOptions, InputError, TextGenerator, UsageError

_OPENING = ("retriever", "encoder", "only", "encoding", "strict", "reads")


@dataclass(frozen=True)
class SearchRequest:
    """Documents to search, and questions to ask.

    Attributes:
        paths: files and folders, or an index.
        question: the question; None if `questions` has them.
        questions: a file of questions, as in `read_asked`.
        retriever, encoder, only, encoding, strict: as in `open_index`.
        cuts: how files are cut.
        reads: how the encoder of files reads.
    """

    paths: tuple[str, ...]
    question: str | None = None
    questions: str | None = None
    retriever: str | None = None
    encoder: str | None = None
    cuts: CutOptions = CutOptions()
    reads: EncoderOptions = EncoderOptions()
    only: tuple[str, ...] = ()
    encoding: str = "utf-8"
    strict: bool = False

    def open(self, show: Show | None = None) -> Index:
        """Opens the documents; `show` as in `open_index`.

        Raises:
            UsageError, InputError: as `open_index`.
        """
        chunking = chunking_of(self.cuts) if self.cuts.given else None
        given = {name: getattr(self, name) for name in _OPENING}
        try:
            return open_index(self.paths, show=show, chunking=chunking, tagger=self.cuts.tagger, **given)
        except UsageError as error:
            if error.field == "chunking":
                error.field = self.cuts.given[0]
            raise

    def read_questions(self) -> list[Asked] | Iterator[Asked]:
        """The question, or the questions of a file: a list, or an iterator over standard input.

        Raises:
            UsageError: standard input is also a document.
        """
        if self.questions is None:
            return [Asked(self.question or "")]
        if self.questions == STDIN and STDIN in self.paths:
            reason = ": standard input is also given as a document; give one of them as a file"
            raise UsageError((Arg("questions", STDIN), reason), field="questions", value=STDIN)
        return read_asked(self.questions)


def find_all(index: Index, asked: Iterable[Asked], options: SearchOptions) -> Iterator[tuple[Asked, Found]]:
    """Searches for each question. Those of a list are checked before the first search, and prepared together."""
    checked = _checked(asked, lambda question: index.check(question, options))
    if isinstance(asked, list):
        yield from zip(checked, index.find_all([one.question for one in asked], options), strict=True)
    else:  # somebody may type them, and waits for each answer
        for one in checked:
            yield one, index.find(one.question, options)


def answer_all(
    index: Index, asked: Iterable[Asked], options: AskOptions, llm: TextGenerator | None
) -> Iterator[tuple[Asked, Answer, NothingFound | None]]:
    """Answers each question. If no passage shares a word with it, gives an empty answer and the error."""
    for one in _checked(asked, lambda question: index.check(question, options)):
        try:
            yield one, index.ask(one.question, llm=llm, options=options), None
        except NothingFound as error:
            assert error.answer is not None  # of an index
            yield one, error.answer, error


def run_of(index: Index, retriever: str | None) -> str | None:
    """The folder of the run that searches an index; None for hybrid, dense and bm25."""
    if retriever is None:
        return index.settings.model if index.settings.is_run else None
    return None if retriever in RETRIEVERS else retriever


def trained_on(run: str, config: Mapping[str, Any] | None = None) -> str:
    """A sentence that names the training data of a run, and advises against it for other texts or questions.

    Args:
        run: folder of the run.
        config: of the run; None reads it.
    """
    if config is None:
        from qrag_jax.checkpoint import load_checkpoint  # imports JAX

        config = load_checkpoint(run, groups=()).config
    data = config.get("data", {})
    paths, hidden = ", ".join(map(str, data.get("paths", ()))), f"hidden in {data.get('haystack')}"
    kinds = {
        "worlds": f"simulated stories of {data.get('num_facts')} facts, {hidden}",
        "babi": f"stories of {paths}, {hidden}",
        "jsonl": f"the questions of {paths}",
        "multihop": f"the questions of {paths}",
        "corpus": f"the questions of {paths}",
    }
    return (
        f"{run} was trained on {kinds.get(data.get('task'), 'unknown data')}; for other texts or questions leave it "
        "out, and the search uses meaning and words, without training"
    )


def _checked(asked: Iterable[Asked], check: Callable[[str], None]) -> Iterator[Asked]:
    """The questions, each checked by `check`: all of a list now, before the search; others as they come."""

    def look(one: Asked) -> Asked:
        try:
            check(one.question)
        except InputError as error:
            raise error.at(one.where) if one.where else error from None
        return one

    return iter([look(one) for one in asked]) if isinstance(asked, list) else map(look, asked)
