"""Texts as spans: sentences, Markdown blocks, the groups and chunks that are made of them."""
