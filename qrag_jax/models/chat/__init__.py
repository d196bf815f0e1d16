"""Chat templates: rendered in a sandbox with caps on time and size."""
