"""Encoders in flax: network, tokenizer, files read and written, texts to vectors."""
