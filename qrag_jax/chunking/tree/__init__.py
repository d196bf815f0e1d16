"""The chunk tree: its rules, how it is built, stored and used."""
