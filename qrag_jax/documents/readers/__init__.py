"""Readers of files, one a kind; they run in the process that `child.py` is."""
