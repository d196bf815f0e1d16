"""Training: a loop for any learner, and Q-RAG on it."""
