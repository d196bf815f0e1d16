"""The context for a language model, and the citations of its answer."""
