"""The chunk tree: what a valid one is, how one is made, kept and read."""
