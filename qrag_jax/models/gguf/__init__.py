"""GGUF files: header, blocks and tokenizer, checked before they are read."""
