"""Training of the Q-RAG retriever."""
