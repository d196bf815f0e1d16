"""The picks of a run as HTML, step by step: what was picked, its Q beside the runners-up, and why the run stopped."""

from collections.abc import Iterator

from qrag_jax.documents.converted import several
from qrag_jax.index.options import Found
from qrag_jax.markup import Html, element
from qrag_jax.page.passages import View, hit_article, hits_section
from qrag_jax.types import Hit

_EXCERPT = 160  # characters of a runner-up
_REASONS = {
    "num_steps": "The run made all its picks.",
    "threshold": "The run stopped, because Q fell below its threshold.",
    "learned_stop": "The run stopped, because Q of STOP was higher than Q of every chunk.",
}
_Scale = tuple[float, float]  # the lowest and the highest Q that are drawn


def found_section(found: Found, view: View) -> Html:
    """Renders the result of a search: passages, or the steps of a run."""
    if found.stop_reason is None:
        return hits_section(found, view)
    steps = [*found.hits, *([found.prevented] if found.prevented else [])]
    values = [value for hit in steps for value in (hit.score, hit.stop_score, *(one.score for one in hit.runners_up))]
    drawn = [0.0, *(value for value in values if value is not None)]
    scale = min(drawn), max(drawn)
    about = element("p", f"{several(len(found.hits), 'pick')} of {several(found.num_chunks, 'chunk')}.", class_="about")
    articles = (_step(hit, view, scale) for hit in found.hits)
    return view.section(about, *articles, _stop(found, view, scale), title="Picks, step by step")


def _step(hit: Hit, view: View, scale: _Scale) -> Html:
    score = f"Q {hit.score:.3f}" + ("" if hit.position is None else f", position {hit.position:.4g}")
    return hit_article(hit, view, *_table(hit, view, scale, "picked"), label=f"Step {hit.rank}", score=score)


def _stop(found: Found, view: View, scale: _Scale) -> Html:
    reason = element("p", _REASONS.get(found.stop_reason or "", found.stop_reason or ""))
    left = _table(found.prevented, view, scale, "would be next") if found.prevented else ()
    return element("article", view.head("Stop"), reason, *left)


def _table(hit: Hit, view: View, scale: _Scale, label: str) -> Iterator[Html]:
    """Q of a pick beside that of the runners-up and of STOP, the highest first."""
    rows = [(hit.score, _pick_row(hit, label, scale))]
    for one in hit.runners_up:
        rows.append((one.score, _row(one.score, scale, _excerpt(one.text), " ", view.linked(one.place))))
    if hit.stop_score is not None:
        rows.append((hit.stop_score, _row(hit.stop_score, scale, element("strong", "STOP"))))
    if len(rows) > 1:
        ordered = [row for _, row in sorted(rows, key=lambda row: -row[0])]
        caption = element("caption", "Q of the best chunks" + (" and of STOP" if hit.stop_score is not None else ""))
        unseen = element("span", "Q as a bar", class_="unseen")
        names = element("tr", *(element("th", name, scope="col") for name in ("Q", unseen, "chunk")))
        yield element("table", caption, element("thead", names), element("tbody", *ordered), class_="q")


def _pick_row(hit: Hit, label: str, scale: _Scale) -> Html:
    return _row(hit.score, scale, element("strong", f"{label}: "), _excerpt(hit.text), class_="pick")


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _EXCERPT else line[: _EXCERPT - 3] + "..."


def _row(score: float, scale: _Scale, *inside: str, class_: str | None = None) -> Html:
    number, bar = element("td", f"{score:.3f}", class_="number"), element("td", _bar(score, scale), class_="bar")
    return element("tr", number, bar, element("td", *inside), class_=class_)


def _bar(value: float, scale: _Scale) -> Html:
    """A bar from 0 to a value."""
    low, high = scale
    left, right = sorted(100 * (x - low) / ((high - low) or 1.0) for x in (0.0, value))
    bar = element("rect", x=f"{left:.2f}", width=f"{max(right - left, 0.5):.2f}", y=0, height=10)
    return element("svg", bar, viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")
