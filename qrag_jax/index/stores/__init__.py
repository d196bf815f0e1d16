"""Where an index keeps its rows and vectors."""
