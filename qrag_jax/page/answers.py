"""An answer as HTML: its text with citations that lead to their passages, and what limits it."""

from collections.abc import Iterator

from qrag_jax.markup import Html, element, join
from qrag_jax.page.passages import Link, citation_article
from qrag_jax.search.answer import Answer
from qrag_jax.search.citations import split_answer


def passages_section(answer: Answer, link: Link, prefix: str = "") -> Html:
    """The passages and notes that an answer is made from, numbered as it cites them; it may have no text yet."""
    title = element("h2", f"{len(answer.given):,} passages read, of {answer.num_chunks:,}")
    articles = (citation_article(one, link, prefix) for one in (*answer.given, *answer.given_notes))
    return element("section", title, *articles, class_="passages")


def answer_section(answer: Answer, prefix: str = "") -> Html:
    """The answer, or why there is none. Its citations lead to the passages of `passages_section`."""
    title = element("h2", "Answer", id=f"{prefix}answer")
    generation = answer.generation
    if answer.text is None:
        error = generation.error if generation is not None and generation.error else ""
        told = f"The language model gave no answer: {error}" if error else "No answer was asked for."
        return element("section", title, element("p", told, class_="message", role="alert"), class_="answer")
    known = {one.number for one in (*answer.given, *answer.given_notes)}
    text = element("p", *_with_links(answer, known, prefix), class_="text")
    return element("section", title, text, *_limits(answer), class_="answer")


def _with_links(answer: Answer, known: set[int], prefix: str) -> Iterator[Html]:
    for part in split_answer(answer.text or "", answer.cited):
        if isinstance(part, str):
            yield join([part])
            continue
        for number in part:
            target = f"#{prefix}passage-{number}"
            if number in known:
                yield element("a", f"[{number}]", href=target, class_="cites", title=f"passage {number}")
            else:
                yield element("span", f"[{number}: no such passage]", class_="unknown")


def _limits(answer: Answer) -> Iterator[Html]:
    """What the reader should know of an answer."""
    told = []
    if answer.generation is None:
        told.append("These are sentences of the passages, word for word.")
    else:
        told.append(f"Written by {answer.model}. A citation does not prove the answer: read the passage.")
        if answer.generation.finish_reason == "length":
            told.append("The answer was cut at the most tokens that were allowed.")
    if answer.cited.unknown:
        numbers = ", ".join(map(str, answer.cited.unknown))
        told.append(f"It cites passages that do not exist: {numbers}.")
    if answer.num_cut:
        told.append(f"{answer.num_cut:,} texts are longer than the encoder reads; only their beginning was searched.")
    yield element("p", " ".join(told), class_="about")
