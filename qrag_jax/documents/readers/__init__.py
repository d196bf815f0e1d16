"""Readers of files, one for each kind; they run in the process of `child.py`."""
