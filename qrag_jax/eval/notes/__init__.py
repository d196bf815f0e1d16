"""Do notes find what only together answers a question? Pools of passages and of stories, and their rows."""
