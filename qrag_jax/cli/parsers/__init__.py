"""Help and flags, one module a verb: SUMMARY, DESCRIPTION, EXAMPLES and add_flags(parser). Imports no JAX."""
