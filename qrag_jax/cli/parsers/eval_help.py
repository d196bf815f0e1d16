"""What `qrag eval --help` says. Imports nothing heavy: the help answers at once."""

from qrag_jax.cli.parsers.llm_flags import HELP

SUMMARY = "score a trained retriever beside its baselines"
DESCRIPTION = f"""\
Score a trained retriever on bAbI questions hidden in long text, on HotpotQA, MuSiQue or 2WikiMultihopQA, or on your own
questions (as texts or as vectors) with known chunks.

What comes out: a table of fact exact match and F1 with 95% intervals, one row a method, protocol and length; --json
writes the rows, --per_query one line a question with the chunks chosen and their Q values. Methods: `trained`;
`untrained`, the same search without the training; `single_step`, plain nearest neighbours; `bm25`.

A method picks --num_steps chunks; the protocol says how many of them count. `fixed`: all. `threshold`: those before the
first Q below a threshold that was fitted on other questions. `stop`: those before the learned STOP of a run with
env.stop=true. `oracle`: until all gold is found, which only the labels tell: a bound, no method.

With --answers a language model answers every question from the chunks that a method chose, in document order, and the
answers are scored beside the facts: exact match and token F1 (SQuAD's normalisation; HotpotQA's and 2Wiki's own rule
for yes and no), whether a right answer is contained, BabiLong's rule, ROUGE-L (pip install 'qrag_jax[eval]'), claims
and correctness by judges. Failed calls are counted and are in no mean; --tests compares methods on the questions that
both answered.

{HELP}"""
EXAMPLES = """\
examples:
  qrag eval runs/demo --babi qa2_valid.txt --num_chunks 50,160,1200 --json rows.json
  qrag eval runs/mine --jsonl questions.jsonl --per_query chosen.jsonl --methods trained,bm25
  qrag eval runs/multihop --hotpot hotpot_dev.json --protocol fixed,threshold,oracle --beam_width 1,4 --tests tests.json
  qrag eval runs/multihop --hotpot hotpot_dev.json --answers answers.jsonl --answer_bounds --tests tests.json
  qrag eval runs/mine --jsonl questions.jsonl --answers --answer_measures em,f1,judge --llm openai \\
      --base_url http://127.0.0.1:8080/v1 --llm_model qwen3
  qrag eval runs/index --vectors index/         chunks.npy, questions.npy and episodes.jsonl
"""
