"""A study of chunkers: quality beside cost, chosen on dev questions and reported on others."""
