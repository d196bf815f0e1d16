"""A script that builds a benchmark as `annotate/hicbench.py` asks it to, and documents to build it on."""

import json
import re

from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.data.corpora.headed_documents import HeadedDocument

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
