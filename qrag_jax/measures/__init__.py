"""Measures of what was found and answered, and their statistics. Below training. No JAX."""
