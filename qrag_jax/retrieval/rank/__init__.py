"""Scores of rows for a question: BM25 and nearest vectors."""
