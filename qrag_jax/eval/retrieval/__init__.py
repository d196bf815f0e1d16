"""Evaluation of retrieval: methods, protocols of stopping, rows, comparisons."""
