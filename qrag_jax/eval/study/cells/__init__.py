"""One config of a chunker over a corpus: measured embedding, costs, results that resume."""
