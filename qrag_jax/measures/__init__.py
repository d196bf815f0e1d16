"""Measures of retrieval and of answers, and their statistics. The package is below training and does not import JAX."""
