"""Hits, answers and documents as HTML without scripts, for the server, for files and for notebooks."""
