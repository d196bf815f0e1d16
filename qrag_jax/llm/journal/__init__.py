"""Finished calls kept in SQLite: none is made again, none is paid twice."""
