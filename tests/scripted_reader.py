"""Scripts that answer the prompts of `annotate/chunk_questions.py`: by hand, and as a reader of bAbI stories would."""

import json
import re

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.stories.story_notes import parse_fact
from qrag_jax.types import InputError

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
