"""Retrieval as a decision process: environment, positions, policies, beams, tasks and batches."""
