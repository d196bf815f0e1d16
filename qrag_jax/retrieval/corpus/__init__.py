"""Documents, chunks, vectors by node id and their cost: built once, kept, asked many times."""
