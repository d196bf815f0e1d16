"""What a language model is given to read of the hits, and the citations of its answer."""
