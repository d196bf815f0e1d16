"""One module a verb of `qrag`: flags to calls of the library, results to the terminal."""
