"""The automaton over bytes of each kind of grammar."""

import json
from functools import lru_cache

from qrag_jax.models.grammar.automaton import ByteAutomaton, byte_automaton
from qrag_jax.models.grammar.expressions import either
from qrag_jax.models.grammar.json_schema import parse_schema
from qrag_jax.models.grammar.regex import parse_regex
from qrag_jax.types import Choice, Grammar, JsonSchema, Regex


@lru_cache(maxsize=64)
def compile_grammar(grammar: Grammar) -> ByteAutomaton:
    """Compiles a grammar into an automaton over bytes."""
    match grammar:
        case Choice(texts):
            return byte_automaton(either(*texts))
        case Regex(pattern):
            return byte_automaton(parse_regex(pattern))
        case JsonSchema(text):
            return byte_automaton(parse_schema(json.loads(text)))
