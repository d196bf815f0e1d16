"""Text as spans: sentences, Markdown blocks, and the groups and chunks made of them."""
