"""Strategies that cut a text into groups of spans, and the distances and clusterings that they use."""
