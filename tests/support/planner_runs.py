"""Run folders of language models that were trained to plan, with random weights."""

from qrag_jax.files.whole_file import write_json
from qrag_jax.llm.prompts import PromptTemplate
from qrag_jax.models.decoder.weights import save_decoder
from qrag_jax.search.levels.planner_runs import RECORD, planner_record
from support.talkers import tiny_talker

ONLY_THE_QUESTION = PromptTemplate("question", "", "$question")


def save_planner(folder, names, trace_tokens=4):
    """A model of bytes whose prompt is the question."""
    save_decoder(folder, tiny_talker(max_positions=256))
    write_json(folder / RECORD, planner_record(names, trace_tokens, ONLY_THE_QUESTION))
    return folder
