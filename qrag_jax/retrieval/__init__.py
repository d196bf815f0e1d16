"""Retrievers and their environment: the retrieval MDP, policies, and the BM25 baseline."""
