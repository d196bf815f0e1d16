"""Q-RAG's training: returns, learner, schedules, data, held-out scores, and what a run saves."""
