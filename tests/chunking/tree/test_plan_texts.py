"""Plans as models write them: what is read, and every reason for what is none."""

import pytest

from qrag_jax.chunking.tree.level_ranges import NAMES, LevelRange, all_ranges
from qrag_jax.chunking.tree.plan_texts import parse_plan, parse_plans, plan_json, trace_of
from qrag_jax.types import InputError

PLAN = '{"largest_chunk_size": "section", "smallest_chunk_size": "paragraph"}'


@pytest.mark.parametrize("levels", all_ranges(NAMES))
def test_a_plan_reads_back(levels):
    text = f"It asks for one fact {{ here.\nSo: {plan_json(levels, NAMES)}\n"
    assert parse_plan(text, NAMES) == levels
    assert trace_of(text) == "It asks for one fact { here.\nSo: "


def test_a_list_of_plans_is_one_for_each_document():
    text = f"Two facts. [ {PLAN} , {plan_json(LevelRange(0, 0), NAMES)} ]"
    assert parse_plans(text, NAMES) == (LevelRange(1, 3), LevelRange(0, 0))
    assert trace_of(text) == "Two facts. " and trace_of("no plan") == "no plan"


def test_the_trace_of_a_plan_has_a_limit():
    assert parse_plan(f"one two three {PLAN}", NAMES, max_trace=3) == LevelRange(1, 3)
    with pytest.raises(InputError, match="its trace has 3 tokens, at most 2; write a shorter one"):
        parse_plan(f"one two three {PLAN}", NAMES, max_trace=2)
    with pytest.raises(InputError, match="its trace has 14 tokens, at most 12"):
        parse_plan(f"one two three {PLAN}", NAMES, max_trace=12, count=len)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no JSON object; end with one, with the fields largest_chunk_size"),
        ("It asks for one fact. {", "it has no JSON object"),
        (f"{PLAN} or {PLAN}", "it has several JSON objects; give one, at the end"),
        (f"{PLAN} That is all.", "it goes on after its JSON object; end with one"),
        (f"{{{PLAN}}}", "it goes on after its JSON object"),
        (PLAN.replace(":", ""), r"its JSON does not parse .* end with an object like \{"),
        ('{"largest_chunk_size": "section"}', "has the fields largest_chunk_size; give largest"),
        ("{}", "has the fields none"),
        ("[ 7 ]", "has the fields none"),
        ("[]", "it has 0 plans; end with one JSON object"),
        (f"[ {PLAN} , {PLAN} ]", "it has 2 plans"),
        (PLAN[:-1] + ', "smallest_chunk_size": "section"}', "each once"),
        (PLAN.replace("paragraph", "chapter"), "smallest_chunk_size must be one of document, .*, got 'chapter'"),
        (PLAN.replace('"section"', "[1]"), r"largest_chunk_size must be one of .*, got \[1\]"),
        (PLAN.replace("section", "sentence"), "largest_chunk_size 'sentence' is smaller than .* 'paragraph': exchange"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_reason(text, reason):
    with pytest.raises(InputError, match=reason):
        parse_plan(text, NAMES)
