"""Grammars of answers: what a text may be, as automata over bytes and over the tokens of a vocabulary. NumPy only."""
