"""Retrievers over a corpus: the trained one, step by step, and those of one step."""
