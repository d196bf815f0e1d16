"""A journal: an SQLite file that caches finished calls, so none is repeated or paid for again."""
