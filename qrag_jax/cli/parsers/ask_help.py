"""What `qrag ask --help` says. Imports nothing heavy: the help answers at once."""

from qrag_jax.cli.parsers.llm_flags import HELP

SUMMARY = "have a language model answer from your own files, with citations"
DESCRIPTION = f"""\
Ask a question about your own text files: passages are retrieved, and a language model answers from them.

What comes out: the answer, then the passages that it cites, each with file:line and file:start-end (half-open offsets
into the decoded text, as in `qrag chunk`), and on standard error what it cost. A citation is shown only where the
passage exists and stands in its file to the character; a number that the model made up is named as such. That a
passage is cited does not prove that it says so: read it. Where nothing is cited the passages that the model was given
are listed instead. --json gives one object: answer, citations, unknown_citations, context, cost, model, prompt_sha256.
Where the model fails the exit code is 1, and what was retrieved is printed all the same.

  single_step  the chunks whose vectors are nearest to the question's
  bm25         the chunks that share its words
  hybrid       both, by reciprocal rank fusion
  RUN          a trained retriever: it picks sentences step by step, as it was trained, and each pick is widened by up
               to --num_around sentences on either side while the context holds them; a folder as runs/demo or ./hybrid

The context is filled with the best passages first, up to --max_context_tokens, and stands in the prompt in document
order, fenced as data. The tokens are those of a local model, else of the encoder (a server's may differ by a little).

{HELP}"""
EXAMPLES = """\
examples:
  qrag ask notes/ "Who has the key to the garden?"
  qrag ask notes/ "Who has the key to the garden?" --retriever runs/demo --num_steps 3 --show_context
  qrag ask book.txt "Who is Ishmael?" --llm openai --base_url http://127.0.0.1:8080/v1 --llm_model smollm2 --json
"""
