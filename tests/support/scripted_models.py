"""Scripts in place of language models: judges, readers, and annotators that answer from the prompt alone."""

import json
import re

from qrag_jax.annotate.numbered_lines import Row, format_rows
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.headed_documents import HeadedDocument
from qrag_jax.data.stories.story_notes import parse_fact
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.types import InputError

_BLOCK = re.compile(r"<(passage-[0-9a-f]{8})>\n(.*?)\n</\1>", re.DOTALL)


def blocks_of(prompt):
    """What stands between marks in the user's message."""
    user = next(message.content for message in prompt if message.role == "user")
    return [text for _, text in _BLOCK.findall(user)]


def kind_of(prompt):
    """`claims`, `entailed` or `correct`: what the prompt asks for."""
    return next(kind for kind in ("claims", "entailed", "correct") if f'{{"{kind}":' in prompt[0].content)


def reply_to(prompt, verdict=None):
    """The JSON answer of a judge that reads letter by letter; `verdict` is (claim, text) -> bool."""
    kind, blocks = kind_of(prompt), blocks_of(prompt)
    if kind == "claims":
        return json.dumps({"claims": [part.strip() for part in blocks[0].split(".") if part.strip()]})
    if kind == "correct":
        return json.dumps({"correct": any(right in blocks[1] for right in blocks[0].split("\n"))})
    claims = [line.partition(". ")[2] for line in blocks[1].split("\n")]
    verdict = verdict or (lambda claim, text: claim in text)
    return json.dumps({"entailed": [verdict(claim, blocks[0]) for claim in claims]})


def make_judge(verdict=None, model="letters", reply=None):
    """A judge; `reply` may take the place of an answer: (prompt, the answer) -> answer."""

    def script(prompt):
        own = reply_to(prompt, verdict)
        return own if reply is None else reply(prompt, own)

    return ScriptedGenerator(script, model=model)


_LINES = re.compile(r"<(passage-\w+)>\n(.*?)\n</\1>", re.DOTALL)
_NEW = re.compile(r"The lines from (\d+) to (\d+) are new")


def lines_of(prompt):
    """The numbered lines of a prompt: (number, text)."""
    lines = _LINES.search(prompt[1].content)[2].split("\n")
    return [(int(number), text) for number, _, text in (line.partition(": ") for line in lines)]


def first_new(prompt):
    """The number of the first line that was not read before."""
    return int(_NEW.search(prompt[1].content)[1])


def rows_by_marks(prompt):
    """Levels as a reader guesses them who knows nothing but these lines.

    A heading begins with a mark, which no level owns: the first mark is one of level 1, a new one is one deeper than
    the heading before it, and a mark that came before keeps its level.
    """
    level_of, now, rows = {}, 0, []
    for number, text in lines_of(prompt):
        if text[0] in "*+-":
            now = level_of.setdefault(text[0], now + 1)
            rows.append(Row(number, now, True))
    return format_rows(row for row in rows if row.line >= first_new(prompt))


def text_of(lines):
    """A text of these lines, one a sentence."""
    spans, at = [], 0
    for line in lines:
        spans.append((at, at + len(line)))
        at += len(line) + 1
    return SentenceText("\n".join(lines), tuple(spans))


def outline(levels):
    """Lines and the points that they are made of: 0 is a line of text, 1 to 3 a heading."""
    lines = [f"{'*+-'[level - 1]} H{number}" if level else f"text {number}" for number, level in enumerate(levels)]
    return text_of(lines), [(number, level) for number, level in enumerate(levels) if level]


_PASSAGE = re.compile(r"<(passage-\w+)>\n(.*?)\n</\1>", re.DOTALL)
_WENT = re.compile(r"Where did (\w+), who \w+ the \w+, go\?")
_VERBS = {"get": "took", "drop": "dropped"}


def passage_of(prompt):
    """The text of the chunk in a prompt, also where that asks again."""
    return _PASSAGE.search(prompt[1].content)[2]


def question_of(prompt):
    """The question that a prompt asks; None where it asks for questions."""
    last = prompt[1].content.splitlines()[-1]
    return last.removeprefix("Question: ") if last.startswith("Question: ") else None


def no_answer():
    return json.dumps({"evidence": "", "answer": ""})


def answer(text, evidence):
    return json.dumps({"evidence": evidence, "answer": text})


def tell_story(prompt):
    """As `data.stories.reader` asks and answers; a chunk without anything to ask asks something that none answers."""
    facts = list(_facts(passage_of(prompt)))
    question = question_of(prompt)
    if question is None:
        asked = [f"Where did {f.person}, who {_VERBS[f.kind]} the {f.noun}, go?" for f, _ in facts if f.kind in _VERBS]
        return json.dumps({"questions": asked or ["Is it late?"]})
    went = _WENT.fullmatch(question)
    moves = [(f, text) for f, text in facts if f.kind == "move" and went and f.person == went[1]]
    return answer(f"To the {moves[0][0].noun}.", moves[0][1]) if moves else no_answer()


def _facts(text):
    for start, end in split_sentences(text):
        try:
            yield parse_fact(text[start:end]), text[start:end]
        except InputError:
            continue


STAGES = {
    "You sum up": "summaries",
    "You write questions": "questions",
    "You find the sentences": "evidence",
    "You take an answer": "facts",
    "You answer a question": "answers",
    "You check statements": "coverage",
}


def stage_of(prompt):
    """The stage of the builder that a prompt is of."""
    return next(stage for words, stage in STAGES.items() if prompt[0].content.startswith(words))


def document_of(name, num_sections=3, num_sentences=6):
    """A document of sections "PLACE N", each with sentences that name it."""
    units, points, paths = [], [], []
    for section in range(num_sections):
        points.append((len(units), 1))
        paths.append((f"{name} {section}",))
        units += [f"{name} {section}", *(f"Fact {n} of {name} {section} is so." for n in range(num_sentences))]
    spans, at = [], 0
    for unit in units:
        spans.append((at, at + len(unit)))
        at += len(unit) + 1
    return HeadedDocument(name, SentenceText("\n".join(units), tuple(spans)), tuple(points), tuple(paths))


def build_script(**answers):
    """(prompt) -> answer; of a stage in `answers` that, or what its function makes of the prompt."""

    def script(prompt):
        stage, last = stage_of(prompt), prompt[-1].content
        if stage in answers:
            return answers[stage](prompt) if callable(answers[stage]) else answers[stage]
        if stage == "summaries":
            return json.dumps({"summary": "A section about facts."})
        if stage == "questions":
            return json.dumps({"question": "What are the facts of it?", "answer": "Fact 0 is so. Fact 1 is so."})
        if stage == "evidence":
            return json.dumps({"sentences": [int(n) for n in re.findall(r"(\d+): Fact [01] of", last)]})
        if stage == "facts":
            return json.dumps({"claims": ["Fact 0 is so.", "Fact 1 is so."]})
        if stage == "answers":
            return "Fact 0 and fact 1 are so."
        return json.dumps({"entailed": [True] * len(re.findall(r"^\d+\. ", last, re.MULTILINE))})

    return script
