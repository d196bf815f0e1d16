"""Decoders (language models) in flax: network, generation, files read and written."""
