"""The hard size of a chunk: groups cut where they are too long, packed where they are small."""
