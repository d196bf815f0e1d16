"""The compressor: the vector of a parent from the vectors of its children."""
