"""Flags are the fields of what a verb asks its service for: each has one, and the default that the field has."""

import dataclasses

import pytest

from qrag_jax import service
from qrag_jax.annotate.boundary_sources import PointsRequest
from qrag_jax.annotate.hicbench import HiCBenchConfig
from qrag_jax.annotate.note_readers import NoteReading
from qrag_jax.cli.errors import FLAGS
from qrag_jax.cli.parser import Parser, load_verb
from qrag_jax.eval.retrieval.score import Options
from qrag_jax.index.options import AskOptions, SearchOptions
from qrag_jax.llm.calls import SHORT_ANSWER_TOKENS
from qrag_jax.llm.config import LlmConfig
from qrag_jax.search.note_search import NoteSearch
from qrag_jax.service.ruler import RulerRequest
from qrag_jax.types import EncoderOptions

NOTES, POINTS = NoteReading("mentions"), PointsRequest()
SEARCHES = (service.SearchRequest, service.CutOptions, EncoderOptions, SearchOptions)
EVALS = (service.EvalRequest, service.QuestionSource, Options, service.AnswersRequest, RulerRequest)
# Of each verb: the dataclasses, or values where their defaults are others; and the fields that no flag gives.
OF_VERBS = {
    "find": (SEARCHES, "paths question cuts reads parents compressor"),
    "ask": (
        (*SEARCHES, AskOptions, LlmConfig),
        "paths question cuts reads parents compressor top_k stop search num_quotes sampling",
    ),
    "index": (
        (service.UpdateRequest, service.CutOptions, EncoderOptions, service.NotesRequest, NOTES, NOTES.llm),
        "folder mirror cut reads notes reading given reader llm wrong_share seed",
    ),
    "chunk": (
        (service.ChunkRequest, POINTS, POINTS.llm),
        "config split all_nodes equal_length breakpoint linkage llm",
    ),
    "boundaries": ((service.ScoreRequest, POINTS, POINTS.llm), "breakpoint linkage llm"),
    "hicbench": (
        (service.BenchmarkRequest, HiCBenchConfig, LlmConfig(max_answer_tokens=HiCBenchConfig.max_tokens)),
        "paths config one_tokens two_tokens num_draws min_seen min_evidence min_coverage section_chars max_tokens "
        "sampling max_asks",
    ),
    "study": ((service.StudyRequest,), "config"),
    "demo": ((service.DemoRequest,), ""),
    "learn": ((service.LearnRequest, LlmConfig(max_answer_tokens=200)), ""),
    "train retriever": ((service.TrainRequest,), ""),
    "train tagger": ((service.TaggerRequest,), ""),
    "train compressor": ((service.CompressorRequest, service.CompressorRequest(()).llm), ""),
    **dict.fromkeys(("train sft", "train grpo", "train stitch"), ((service.DecoderRequest,), "")),
    "train reranker": ((service.RerankerRequest,), ""),
    "train router": ((service.RouterRequest,), ""),
    "eval": ((*EVALS, LlmConfig(max_answer_tokens=SHORT_ANSWER_TOKENS)), "source options options kind path"),
    "notes": (
        (service.NotesEvalRequest, NOTES, NoteSearch, NOTES.llm),
        "kind path reading search llm mode capped words_weight",
    ),
    "push": ((service.PushRequest,), ""),
}


@pytest.mark.parametrize("name", OF_VERBS)
def test_every_field_of_a_request_has_one_flag_and_its_default(name):
    owners, others = OF_VERBS[name]
    verb, *kind = name.split(" ")
    parser = Parser(name, load_verb(verb).kinds[kind[0]] if kind else load_verb(verb))
    actions = {action.dest: action for action in parser._actions}
    without = []
    for of, one in ((owner, one) for owner in owners for one in dataclasses.fields(owner)):
        action = actions.get(one.name) or actions.get(FLAGS.get(one.name, ""))
        default = getattr(of, one.name, dataclasses.MISSING)
        if action is None or dataclasses.is_dataclass(default):
            without.append(one.name)
        elif default in (dataclasses.MISSING, None, False, ()):
            assert action.default in (None, False, []) or default is dataclasses.MISSING
        elif action.default is None:
            shown = ",".join(map(str, default)) if isinstance(default, tuple) else format(default, "")
            assert f"(default: {shown.removesuffix('.0')}" in (action.help or ""), action.dest
        else:
            assert action.default == default, action.dest
    assert sorted(without) == sorted(others.split())
