"""Files of ours: written whole, listed and hashed, locked, strict YAML. Imports no JAX."""
