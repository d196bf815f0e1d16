"""Run folders of planners: what they hold, which planner they give, and what is refused."""

import json

import pytest
from support.level_documents import NAMES, embed, tiny_index
from support.planner_runs import ONLY_THE_QUESTION, save_planner

from qrag_jax.chunking.tree.level_ranges import all_ranges
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.search.levels.planner_runs import RECORD, load_planner, planner_record, read_planner
from qrag_jax.types import InputError, UsageError


def test_a_record_reads_back(tmp_path):
    about = planner_record(NAMES, 128)
    template = load_prompt("plan_levels")
    assert about == {
        "levels": list(NAMES),
        "trace_tokens": 128,
        "prompt": "plan_levels",
        "system": "",
        "user": template.user,
    }
    (tmp_path / RECORD).write_text(json.dumps(about))
    found = read_planner(tmp_path)
    assert (found.levels, found.trace_tokens, found.template) == (NAMES, 128, template)


def test_a_run_plans_every_question_by_its_own_words(tmp_path):
    run = save_planner(tmp_path / "run", NAMES)
    plans = load_planner(run, tiny_index(), embed)(["whales sing", "comets"], [])
    assert all(one in all_ranges(NAMES) for one in plans.ranges) and plans.fallbacks == {}
    assert plans.reading.num_calls == 2 and plans.reading.prompt_tokens > len("whales sing" + "comets")


@pytest.mark.parametrize(
    ("levels", "trace_tokens", "user", "message"),
    [
        ((), 5, "$question", "planner: 0 levels, traces of 5 tokens; give at least 1 of each"),
        (NAMES, 0, "$question", "traces of 0 tokens"),
        (NAMES, 5, "$sizes", "its prompt has the places sizes; give \\$question, and \\$sizes if need be"),
        (NAMES, 5, "$question $heads", "its prompt has the places heads, question"),
        (NAMES, 5, "", "its prompt has the places none"),
    ],
)
def test_a_record_that_cannot_be_is_refused(levels, trace_tokens, user, message):
    with pytest.raises(UsageError, match=message):
        planner_record(levels, trace_tokens, PromptTemplate("mine", "", user))


@pytest.mark.parametrize(
    "changes",
    [{"levels": []}, {"levels": 7}, {"trace_tokens": "many"}, {"user": "no place"}, {"user": "$question costs $ 5"}],
)
def test_a_damaged_record_is_refused(tmp_path, changes):
    about = planner_record(NAMES, 8, ONLY_THE_QUESTION) | changes
    (tmp_path / RECORD).write_text(json.dumps(about))
    with pytest.raises(InputError, match="planner.json: damaged .*; copy it again, or train it again"):
        read_planner(tmp_path)


def test_a_record_without_a_field_is_refused(tmp_path):
    (tmp_path / RECORD).write_text(json.dumps({"levels": list(NAMES)}))
    with pytest.raises(InputError, match="damaged .'prompt'"):
        read_planner(tmp_path)


def test_a_model_that_did_not_learn_to_plan_is_refused(tmp_path):
    (save_planner(tmp_path / "run", NAMES) / RECORD).unlink()
    with pytest.raises(UsageError, match="run: a language model without planner.json, so it did not learn to plan"):
        read_planner(tmp_path / "run")


def test_a_planner_of_some_levels_names_them_in_an_index_of_more(tmp_path):
    run = save_planner(tmp_path / "run", NAMES[2:])
    plans = load_planner(run, tiny_index(), embed)(["whales", "comets", "bread"], [])
    assert all(2 <= one.least <= one.most < len(NAMES) for one in plans.ranges)


def test_other_levels_are_refused_before_the_model_is_loaded(tmp_path):
    (tmp_path / RECORD).write_text(json.dumps(planner_record(("a", "b"), 8)))
    with pytest.raises(UsageError, match="trained on the levels a, b, but the index has document"):
        load_planner(tmp_path, tiny_index(), embed)
    (tmp_path / RECORD).write_text(json.dumps(planner_record(NAMES[::-1], 8)))
    with pytest.raises(UsageError, match="but the index has document"):
        load_planner(tmp_path, tiny_index(), embed)
