"""Answers of a language model from the picks of methods, with scores."""
