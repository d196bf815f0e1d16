"""Learners beside the retriever, each over the trainer of all."""
