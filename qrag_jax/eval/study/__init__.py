"""A study of chunkers: quality and cost, with configs chosen on dev questions and reported on others."""
