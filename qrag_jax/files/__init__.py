"""Safe files: complete writes, hashes, locks and strict YAML. Imports no JAX."""
