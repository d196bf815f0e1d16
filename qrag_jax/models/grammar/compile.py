"""The automaton over bytes of each kind of grammar, and its text for llama.cpp."""

import json
from functools import lru_cache

from qrag_jax.models.grammar.automaton import ByteAutomaton, byte_automaton
from qrag_jax.models.grammar.expressions import Expression, either
from qrag_jax.models.grammar.json_schema import parse_schema
from qrag_jax.models.grammar.lark import lark_text
from qrag_jax.models.grammar.regex import parse_regex
from qrag_jax.types import Choice, Grammar, JsonSchema, Regex


@lru_cache(maxsize=64)
def compile_grammar(grammar: Grammar) -> ByteAutomaton:
    """Compiles a grammar into an automaton over bytes."""
    return byte_automaton(_expression(grammar))


@lru_cache(maxsize=64)
def lark_of(grammar: Grammar) -> str:
    """The grammar as llama.cpp's LLGuidance reads it; it admits what `compile_grammar` admits.

    Raises:
        UsageError: a grammar that cannot be read, or that is too large.
    """
    compile_grammar(grammar)  # llama.cpp ignores what it cannot read, so the grammar is checked here
    return lark_text(_expression(grammar))


def _expression(grammar: Grammar) -> Expression:
    match grammar:
        case Choice(texts):
            return either(*texts)
        case Regex(pattern):
            return parse_regex(pattern)
        case JsonSchema(text):
            return parse_schema(json.loads(text))
