"""The search files of an index: vectors and words of its documents and notes, which a search maps into memory."""
