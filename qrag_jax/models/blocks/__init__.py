"""Matrices whose numbers are kept in few bits, block by block, and their products."""
