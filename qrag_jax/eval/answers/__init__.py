"""What a language model answers from what methods picked, scored."""
