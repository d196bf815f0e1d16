"""Language models behind one protocol (`types.TextGenerator`), and a journal of finished calls."""
