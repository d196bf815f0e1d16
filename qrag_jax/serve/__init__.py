"""The server of `qrag serve`: HTTP, the page, and tools for agents."""
