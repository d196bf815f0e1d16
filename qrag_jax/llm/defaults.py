"""Defaults that both the code of language models and the help of the command line quote. Imports nothing."""

CONCURRENCY = 4  # calls to a server at a time
DEADLINE = 120.0  # seconds of a call with its retries
OPENAI_KEY_NAME = "OPENAI_API_KEY"  # environment variable with the key, for OpenAI's own hosts
OWN_KEY_NAME = "QRAG_API_KEY"  # for all others: nobody's OpenAI key goes to another host unasked
ANSWER_TOKENS = 256  # most tokens of an answer with citations
SHORT_ANSWER_TOKENS = 32  # of an answer that is scored
# How a server of the OpenAI protocol is told of a grammar.
GRAMMAR_FIELDS = ("response_format", "structured_outputs", "guided")
