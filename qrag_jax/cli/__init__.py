"""The command line `qrag`: the only place that knows every package. Importing it imports no JAX."""
