"""The tagger: which sentences begin a section, and of which level, from features of the sentences around each gap."""
