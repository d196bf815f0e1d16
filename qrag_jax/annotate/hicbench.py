"""Questions with dense evidence by a language model: a builder of benchmarks after HiCBench (sec. 3).

    built = build_hicbench(read_headed("wikitext2:PATH", "kept"), generator, count)

The model reads summaries of a document's sections and one section (T1) or two (T2), and writes a question whose answer
is scattered in them. A question is kept if several draws find the same evidence, if there is enough evidence, and if
answers from the same text state almost all facts of the right answer. Rejected questions are counted by reason.

    summaries -> questions -> evidence, 5 draws -> facts -> answers, 5 draws -> coverage of the facts

The model names evidence by sentence numbers, so every span is exact. A failed call is an error and rejects no question.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from qrag_jax.annotate.ask_chunks import UNREADABLE, AnswerForm, Desk, Form, FreeForm, Progressed, Reading
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.tree.build import tree_from_points
from qrag_jax.data.corpora.headed_documents import HeadedDocument
from qrag_jax.files.whole_file import write_whole
from qrag_jax.llm.json_answers import Boolean, Integer, ListOf, Record, Text
from qrag_jax.llm.prompts import fence, load_prompt, passages_prompt
from qrag_jax.types import (
    CountTokens,
    InputError,
    Message,
    Sampling,
    Span,
    TextGenerator,
    UsageError,
    check_fields,
)

Kind = Literal["T1", "T2"]
# Reasons why there is no question.
NO_CONTEXT = "document without sections of this size"
NO_QUESTION = "question not readable"
NO_EVIDENCE = "no evidence found again and again"
THIN_EVIDENCE = "too little evidence"
NO_FACTS = "answer without facts"
NOT_COVERED = "not answered from its own text"
_PROMPTS = ("hicbench_summary", "hicbench_question", "hicbench_evidence", "claims", "study_answer", "entailment")
_SUMMARY = Form(Record({"summary": Text(1, 600)}), Record({"summary": Text(1)}))
_QUESTION = Form(
    Record({"question": Text(10, 400), "answer": Text(1, 1_500)}), Record({"question": Text(1), "answer": Text(1)})
)
_SENTENCES = Form(
    Record({"sentences": ListOf(Integer(0, 9_999), 0, 60)}), Record({"sentences": ListOf(Integer(0, 10**9), 0)})
)
_FACTS = Form(Record({"claims": ListOf(Text(1, 400), 0, 30)}), Record({"claims": ListOf(Text(1), 0)}))


@dataclass(frozen=True)
class HiCBenchConfig:
    """Settings of the questions to try and to keep.

    Attributes:
        num_one, num_two: questions of T1 and T2 to try for each document.
        one_tokens, two_tokens: fewest and most tokens of a section, for T1 and T2.
        num_draws: of evidence, and of answers.
        min_seen: draws that must name a sentence as evidence.
        min_evidence: least share of the text's characters that is evidence.
        min_coverage: share of the facts that answers must exceed, mean over the draws.
        section_chars: characters of a section that its summary uses.
        draw_temperature: of the draws; at 0 all draws would be equal.
        max_tokens: most tokens of an answer.
        sampling: of all calls, except `max_tokens`, and except seed and temperature of the draws.
        max_asks: most calls for a prompt.
        seed: of the choice of sections.
        prompts: folder of the user's templates; None uses the built-in ones.
    """

    num_one: int = 2
    num_two: int = 2
    one_tokens: tuple[int, int] = (512, 4_096)
    two_tokens: tuple[int, int] = (256, 2_048)
    num_draws: int = 5
    min_seen: int = 4
    min_evidence: float = 0.1
    min_coverage: float = 0.8
    section_chars: int = 8_000
    draw_temperature: float = 0.7
    max_tokens: int = 500
    sampling: Sampling = Sampling()
    max_asks: int = 2
    seed: int = 0
    prompts: Path | None = None

    def __post_init__(self) -> None:
        positive = ("num_draws", "min_seen", "section_chars", "max_tokens", "max_asks", "one_tokens", "two_tokens")
        check_fields(self, "hicbench", positive=positive)
        if self.min_seen > self.num_draws:
            raise UsageError(f"hicbench.min_seen {self.min_seen}: must be at most num_draws, {self.num_draws}")
        for name in ("one_tokens", "two_tokens"):
            low, high = getattr(self, name)
            if low > high:
                raise UsageError("give the smaller one first", field=f"hicbench.{name}", value=(low, high))


@dataclass(frozen=True)
class BuiltQuestion:
    """A question, finished or in progress.

    Attributes:
        kind: T1 for one section, T2 for two.
        document: index of its document.
        spans: of the sections, in the document.
        question, answer: in the model's words.
        evidence: spans of sentences in the sections.
        facts: of the answer.
        coverage: share of the facts that answers from the sections state, mean over the draws.
    """

    kind: Kind
    document: int
    spans: tuple[Span, ...]
    question: str = ""
    answer: str = ""
    evidence: tuple[Span, ...] = ()
    facts: tuple[str, ...] = ()
    coverage: float = 0.0


@dataclass(frozen=True)
class Built:
    """The result of a build.

    Attributes:
        questions: kept questions.
        num_tried: sections, or pairs of sections, with a question tried.
        rejected: number of rejected questions, by reason.
        num_unreadable: unreadable answers, including those of draws, which count as empty.
        calls: the cost.
    """

    questions: tuple[BuiltQuestion, ...]
    num_tried: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    num_unreadable: int = 0
    calls: Reading = field(default_factory=Reading)


def build_hicbench(
    documents: Sequence[HeadedDocument],
    generator: TextGenerator,
    count: CountTokens,
    config: HiCBenchConfig | None = None,
    *,
    progress: Progressed | None = None,
) -> Built:
    """Builds questions about documents; see the module.

    Args:
        documents: with sections, headings kept or plain.
        generator: writes everything; with a journal, no finished call is repeated.
        count: counts tokens.
        config: None uses the defaults.
        progress: called for every answer, in the stages of the module.

    Raises:
        InputError: a call failed. With a journal, building again repeats only failed calls.
        UsageError: as `load_prompt`.
    """
    config = config or HiCBenchConfig()
    builder = _Builder(documents, generator, config, progress)
    tried = [one for number in range(len(documents)) for one in builder.contexts(number, count)]
    kept = builder.questions(tried, builder.summaries({one.document for one in tried}))
    for stage in (builder.evidence, builder.facts, builder.coverage):
        kept = stage(kept)
    rejected = {reason: number for reason, number in sorted(builder.rejected.items()) if number}
    return Built(tuple(kept), len(tried), rejected, builder.desk.left_out[UNREADABLE], builder.desk.reading)


def write_hicbench(folder: Path, built: Built, documents: Sequence[HeadedDocument]) -> None:
    """Writes the texts as `documents/NUMBER.txt`, and `questions.jsonl` for `qrag study`.

    A line is {"id", "type", "question", "answer", "evidence": [{"file", "start", "end", "text"}, ...], "facts",
    "coverage", "context": [[start, end], ...]}; offsets count characters of the file.

    Raises:
        InputError: a file cannot be written.
    """
    texts = {one.document for one in built.questions}
    (folder / "documents").mkdir(parents=True, exist_ok=True)
    for number in sorted(texts):
        write_whole(folder / "documents" / _file(number), readable(documents[number].text.text))
    rows = [_row(place, one, documents[one.document].text.text) for place, one in enumerate(built.questions)]
    write_whole(folder / "questions.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _row(place: int, one: BuiltQuestion, text: str) -> dict[str, object]:
    evidence = [
        {"file": _file(one.document), "start": start, "end": end, "text": readable(text[start:end])}
        for start, end in one.evidence
    ]
    return {
        "id": f"{one.kind}-{place:04d}",
        "type": one.kind,
        "question": one.question,
        "answer": one.answer,
        "evidence": evidence,
        "facts": list(one.facts),
        "coverage": one.coverage,
        "context": [list(span) for span in one.spans],
    }


def _file(number: int) -> str:
    return f"{number:04d}.txt"


class _Builder:
    """The stages of a build; each returns the remaining questions."""

    def __init__(
        self,
        documents: Sequence[HeadedDocument],
        generator: TextGenerator,
        config: HiCBenchConfig,
        progress: Progressed | None,
    ) -> None:
        self.documents, self.config = documents, config
        self.templates = {name: load_prompt(name, config.prompts) for name in _PROMPTS}
        again = load_prompt("again", config.prompts)
        self.desk = Desk(generator, config.sampling, config.max_asks, again, progress)
        self.rejected: Counter[str] = Counter()

    def contexts(self, number: int, count: CountTokens) -> list[BuiltQuestion]:
        """Sections of a document, and pairs of sections without overlap, drawn by its id."""
        document, config = self.documents[number], self.config
        text = document.text.text
        tree = tree_from_points(document.text, document.points, document.id)
        sizes = {tree.span(node): count(readable(text[slice(*tree.span(node))])) for node in range(1, len(tree))}
        ones, parts = (
            [span for span, size in sizes.items() if low <= size <= high]
            for low, high in (config.one_tokens, config.two_tokens)
        )
        twos = [(a, b) for a, b in combinations(sorted(parts), 2) if a[1] <= b[0]]
        found = list[BuiltQuestion]()
        choices: list[tuple[Kind, list[tuple[Span, ...]], int]] = [
            ("T1", [(one,) for one in ones], config.num_one), ("T2", [*twos], config.num_two)]  # fmt: skip
        for kind, among, wanted in choices:
            rng = random.Random(f"{config.seed} {kind} {document.id}")
            drawn = rng.sample(among, min(wanted, len(among)))
            self.rejected[NO_CONTEXT] += bool(wanted) and not drawn
            found += [BuiltQuestion(kind, number, spans) for spans in drawn]
        return found

    def summaries(self, numbers: Iterable[int]) -> dict[int, str]:
        """For each document, one line for each section of level 1: title and summary, or only the title."""
        sections = [(number, title, span) for number in sorted(numbers) for title, span in self._sections(number)]
        prompts = []
        for number, _, (start, end) in sections:
            text = readable(self.documents[number].text.text[start : min(end, start + self.config.section_chars)])
            prompts.append(self._prompt("hicbench_summary", "passage", [text]))
        lines: dict[int, list[str]] = {}
        for (number, title, _), value in zip(sections, self._ask("summaries", prompts, _SUMMARY), strict=True):
            said = " ".join(value["summary"].split()) if value is not None else ""
            lines.setdefault(number, []).append(readable(f"{title}: {said}" if said else title))
        return {number: "\n".join(its) for number, its in lines.items()}

    def questions(self, tried: Sequence[BuiltQuestion], summaries: Mapping[int, str]) -> list[BuiltQuestion]:
        """The questions that the model wrote with an answer."""
        prompts = [
            self._prompt("hicbench_question", "blocks", [summaries.get(one.document, ""), *self._texts(one)])
            for one in tried
        ]
        kept = []
        for one, value in zip(tried, self._ask("questions", prompts, _QUESTION), strict=True):
            if value is None:
                self.rejected[NO_QUESTION] += 1
            else:
                asked, answer = (" ".join(value[name].split()) for name in ("question", "answer"))
                kept.append(replace(one, question=asked, answer=answer))
        return kept

    def evidence(self, asked: Sequence[BuiltQuestion]) -> list[BuiltQuestion]:
        """The questions with enough sentences that enough draws name."""
        sentences = [self._sentences(one) for one in asked]
        prompts = []
        for one, spans in zip(asked, sentences, strict=True):
            text = self.documents[one.document].text.text
            lines = [f"{n}: {readable(' '.join(text[a:b].split()))}" for n, (a, b) in enumerate(spans)]
            said = {"question": one.question, "answer": one.answer}
            prompts.append(self._prompt("hicbench_evidence", "lines", ["\n".join(lines)], **said))
        seen = [Counter[int]() for _ in asked]
        for draw in range(self.config.num_draws):
            for votes, value in zip(seen, self._ask("evidence", prompts, _SENTENCES, draw), strict=True):
                votes.update(set(value["sentences"]) if value is not None else ())
        kept = []
        for one, spans, votes in zip(asked, sentences, seen, strict=True):
            found = tuple(span for n, span in enumerate(spans) if votes[n] >= self.config.min_seen)
            size = sum(end - start for start, end in found)
            if not found:
                self.rejected[NO_EVIDENCE] += 1
            elif size < self.config.min_evidence * sum(end - start for start, end in spans):
                self.rejected[THIN_EVIDENCE] += 1
            else:
                kept.append(replace(one, evidence=found))
        return kept

    def facts(self, asked: Sequence[BuiltQuestion]) -> list[BuiltQuestion]:
        """The questions whose answer states facts."""
        prompts = [self._prompt("claims", "text", [one.answer], question=one.question) for one in asked]
        kept = []
        for one, value in zip(asked, self._ask("facts", prompts, _FACTS), strict=True):
            facts = tuple(dict.fromkeys(" ".join(fact.split()) for fact in value["claims"])) if value else ()
            if facts:
                kept.append(replace(one, facts=facts))
            else:
                self.rejected[NO_FACTS] += 1
        return kept

    def coverage(self, asked: Sequence[BuiltQuestion]) -> list[BuiltQuestion]:
        """The questions whose sections give answers with enough facts, mean over the draws."""
        prompts = [
            passages_prompt(self.templates["study_answer"], one.question, self._texts(one), "section") for one in asked
        ]
        stated = [0.0] * len(asked)
        for draw in range(self.config.num_draws):
            answers = self._ask("answers", prompts, FreeForm(), draw)
            for place, share in self._covered(asked, answers).items():
                stated[place] += share
        kept = []
        for one, total in zip(asked, stated, strict=True):
            one = replace(one, coverage=total / self.config.num_draws)
            if one.coverage > self.config.min_coverage:
                kept.append(one)
            else:
                self.rejected[NOT_COVERED] += 1
        return kept

    def _covered(self, asked: Sequence[BuiltQuestion], answers: Sequence[str | None]) -> dict[int, float]:
        """Shares of facts that answers state, by place; one batch for every number of facts."""
        shares: dict[int, float] = {}
        sized = {place: len(asked[place].facts) for place, answer in enumerate(answers) if answer is not None}
        for size in sorted(set(sized.values())):
            places = [place for place in sized if sized[place] == size]
            verdicts = Record({"entailed": ListOf(Boolean(), size, size)})
            prompts = [self._check(asked[place], answers[place] or "") for place in places]
            for place, value in zip(places, self._ask("coverage", prompts, Form(verdicts, verdicts)), strict=True):
                shares[place] = sum(value["entailed"]) / size if value is not None else 0.0
        return shares

    def _check(self, one: BuiltQuestion, answer: str) -> tuple[Message, ...]:
        listed = "\n".join(f"{number}. {fact}" for number, fact in enumerate(one.facts, 1))
        return self._prompt("entailment", "blocks", [readable(answer), listed], question=one.question)

    def _prompt(self, name: str, field: str, texts: Sequence[str], **values: str) -> tuple[Message, ...]:
        """The conversation of a template, with these texts between marks in the place `field`."""
        mark, fenced = fence(texts, "section", beside=list(values.values()))
        return self.templates[name].fill(mark=mark, **{field: fenced}, **values)

    def _ask(
        self, stage: str, prompts: Sequence[tuple[Message, ...]], form: AnswerForm, draw: int | None = None
    ) -> list[Any]:
        """The values of all answers; None for unreadable ones."""
        desk, config = self.desk, self.config
        if draw is not None:
            sampling = replace(config.sampling, temperature=config.draw_temperature, seed=config.sampling.seed + draw)
            desk = replace(desk, sampling=sampling, reading=Reading())
        outcomes = list(desk.outcomes(stage, prompts, len(prompts), form, config.max_tokens))
        if failed := [last.error for one in outcomes if (last := one.generations[-1]).is_failed]:
            raise InputError(
                f"{stage}: {len(failed):,} of {len(prompts):,} calls of the language model failed; the first one: "
                f"{failed[0]}; build again (with a journal, only failed calls are repeated)"
            )
        if desk is not self.desk:
            self.desk.reading += desk.reading
        return [one.value for one in outcomes]

    def _texts(self, one: BuiltQuestion) -> list[str]:
        text = self.documents[one.document].text.text
        return [readable(text[start:end]) for start, end in one.spans]

    def _sentences(self, one: BuiltQuestion) -> list[Span]:
        """The sentences of the sections, in order."""
        sentences = self.documents[one.document].text.sentences
        return [(a, b) for start, end in one.spans for a, b in sentences if start <= a and b <= end]

    def _sections(self, number: int) -> list[tuple[str, Span]]:
        """Title and span of each section of level 1."""
        document = self.documents[number]
        named = zip(document.points, document.paths, strict=True)
        tops = [(document.text.sentences[unit][0], path[-1]) for (unit, level), path in named if level == 1]
        ends = [*(start for start, _ in tops[1:]), len(document.text.text)]
        return [(title, (start, end)) for (start, title), end in zip(tops, ends, strict=True)]
