"""What `qrag find --help` says. Imports nothing: the help answers at once."""

SUMMARY = "ask a trained retriever about your own files"
DESCRIPTION = """\
Ask a trained retriever about your own text files: it picks one chunk, reads it, and looks for the next one.

What comes out: the chunks in the order they were found, each with file:line and its Q value, and once more in the
order they stand in. --json adds offsets and costs.
"""
EXAMPLES = """\
examples:
  qrag find runs/demo diary.txt "Where is the milk?"
  qrag find runs/demo notes/ letters/*.md "Who took the key to the garden?" --num_steps 4 --json
"""
