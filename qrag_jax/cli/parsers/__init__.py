"""Flags and help of each verb. Imports no JAX."""
