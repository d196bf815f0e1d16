"""Measures, intervals, records and reports: NumPy, str and files; nothing here imports JAX."""
