"""Measures of picks, rankings, spans, borders and answers; intervals and aggregates."""
