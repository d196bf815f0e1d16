"""Stores of the rows and vectors of an index."""
