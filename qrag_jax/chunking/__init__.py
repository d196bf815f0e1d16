"""Host-side chunking: text in, exact character spans out. Imports no JAX."""

from qrag_jax.chunking.sentences import split_sentences

__all__ = ["split_sentences"]
