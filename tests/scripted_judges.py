"""Judges without a model: claims are sentences, and a text entails a claim that stands in it."""

import json
import re

from qrag_jax.llm.scripted import ScriptedGenerator

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
