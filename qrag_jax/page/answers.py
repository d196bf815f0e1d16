"""An answer as HTML: its text with citations that lead to their passages, and what limits it."""

from collections.abc import Iterator

from qrag_jax.markup import Html, element, join
from qrag_jax.page.passages import View, citation_article, nothing_found
from qrag_jax.search.answer import Answer
from qrag_jax.search.citations import split_answer


def passages_section(answer: Answer, view: View) -> Html:
    """The passages and notes that an answer is made from, numbered as it cites them; it may have no text yet."""
    if not answer.given:
        return nothing_found(answer.num_chunks, view)
    about = element(
        "p", f"{len(answer.given):,} of {answer.num_chunks:,}, in the order of the documents.", class_="about"
    )
    articles = (citation_article(one, view) for one in (*answer.given, *answer.given_notes))
    return view.section(about, *articles)


def answer_section(answer: Answer, view: View) -> Html:
    """The answer, or why there is none. Its citations lead to the passages of `passages_section` in the same view."""
    if answer.text is not None:
        known = {one.number for one in (*answer.given, *answer.given_notes)}
        text = element("p", *_with_links(answer, known, view.prefix), class_="text")
        return view.section(text, *_limits(answer), kind="answer", title="Answer")
    error = None if answer.generation is None else answer.generation.error
    told = "No answer was asked for." if error is None else f"The language model gave no answer: {error}"
    return message_section(told, view)


def message_section(text: str, view: View) -> Html:
    """A message in the place of an answer."""
    return view.section(element("p", text, class_="message", role="alert"), kind="answer", title="Answer")


def _with_links(answer: Answer, known: set[int], prefix: str) -> Iterator[Html]:
    for part in split_answer(answer.text or "", answer.cited):
        if isinstance(part, str):
            yield join([part])
            continue
        for number in part:
            if number in known:
                yield element("a", f"[{number}]", href=f"#{prefix}passage-{number}", class_="cites")
            else:
                yield element("span", f"[{number}: no such passage]", class_="unknown")


def _limits(answer: Answer) -> Iterator[Html]:
    """The limits of an answer, for its reader."""
    told = ["These are sentences of the passages, word for word."]
    if answer.generation is not None:
        told = [f"Written by {answer.model}. A citation does not prove the answer: read the passage."]
        if answer.generation.finish_reason == "length":
            told.append("The answer was cut at the most tokens that were allowed.")
    if answer.cited.unknown:
        told.append(f"It cites passages that do not exist: {', '.join(map(str, answer.cited.unknown))}.")
    if answer.num_cut:
        told.append(f"{answer.num_cut:,} texts are longer than the encoder reads; only their beginning was searched.")
    yield element("p", " ".join(told), class_="about")
