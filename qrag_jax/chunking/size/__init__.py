"""The size limit of chunks: groups are cut if too long, and joined if too small."""
