"""Questions that come with their chunks: JSON Lines, multi-hop sets, episodes over vectors."""
