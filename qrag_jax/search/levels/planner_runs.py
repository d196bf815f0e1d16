"""Planners that were trained, from their run folders: routers, and language models.

A run of a language model is a model folder with a file `planner.json` (`planner_record`):

    {"levels": ["document", "section"], "trace_tokens": 128, "prompt": "plan_levels", "system": "", "user": "..."}

`system` and `user` are the template of the prompts that it was trained on, so another version of the built-in prompt
changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qrag_jax.chunking.tree.level_ranges import LevelRange
from qrag_jax.files.whole_file import read_json
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.llm_planner import make_trained_planner, plan_prompt
from qrag_jax.search.levels.planners import Planner, Plans, check_levels
from qrag_jax.search.levels.router import Router, load_router, make_planner
from qrag_jax.types import Embed, InputError, UsageError

RECORD = "planner.json"
PROMPT = "plan_levels"
_PLACES = {"question", "sizes"}


@dataclass(frozen=True)
class TrainedPlans:
    """How a language model was trained to plan.

    Attributes:
        run: its folder.
        levels: names of the levels, the coarsest first.
        trace_tokens: most tokens of a trace.
        template: of its prompts.
    """

    run: str
    levels: tuple[str, ...]
    trace_tokens: int
    template: PromptTemplate


def planner_record(levels: Sequence[str], trace_tokens: int, template: PromptTemplate | None = None) -> dict[str, Any]:
    """The content of `planner.json` in a run of a language model that was trained to plan.

    Args:
        levels: names of the levels, the coarsest first.
        trace_tokens: most tokens of a trace in training.
        template: of its prompts, with the place $question, and $sizes if need be; None is the built-in `plan_levels`.

    Raises:
        UsageError: no levels, a limit below 1, or a template with other places.
    """
    template = template or load_prompt(PROMPT)
    if not levels or trace_tokens < 1:
        raise UsageError(f"planner: {len(levels)} levels, traces of {trace_tokens} tokens; give at least 1 of each")
    if "question" not in template.places or template.places - _PLACES:
        places = ", ".join(sorted(template.places)) or "none"
        raise UsageError(f"planner: its prompt has the places {places}; give $question, and $sizes if need be")
    texts = {"prompt": template.name, "system": template.system, "user": template.user}
    return {"levels": list(levels), "trace_tokens": trace_tokens, **texts}


def read_planner(run: str | Path) -> Router | TrainedPlans:
    """Reads the record of the planner in a run folder. It does not load the weights of a language model.

    Raises:
        UsageError: there is no such folder, or it has no planner.
        InputError: it is damaged.
    """
    path = Path(run) / RECORD
    if not path.is_file():
        if (path.parent / "model.safetensors").is_file():
            raise UsageError(f"{run}: a language model without {RECORD}, so it did not learn to plan; give another")
        return load_router(run)
    about = read_json(path)
    try:
        template = PromptTemplate(*(str(about[name]) for name in ("prompt", "system", "user")))
        levels, trace_tokens = tuple(map(str, about["levels"])), int(about["trace_tokens"])
        planner_record(levels, trace_tokens, template)
        plan_prompt(template, "question", levels)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise InputError(f"damaged ({error}); copy it again, or train it again", file=path) from error
    return TrainedPlans(str(run), levels, trace_tokens, template)


def ask_trained(trained: TrainedPlans, names: Sequence[str], where: str = "the index") -> Planner:
    """The planner of a language model; loads its weights.

    Args:
        trained: as `read_planner` found it.
        names: of the levels to search, the coarsest first; some or all of them are its levels.
        where: what a message calls the place of these levels.

    Raises:
        UsageError: a level of the planner is not among the names, or they have another order.
    """
    from qrag_jax.llm.local import LocalGenerator  # imports JAX, which nothing else here needs

    places = [place for place, name in enumerate(names) if name in trained.levels]
    if [names[place] for place in places] != list(trained.levels):
        check_levels(trained.levels, names, trained.run, where)
    generator = LocalGenerator(trained.run)
    plan = make_trained_planner(
        generator, generator.count_tokens, trained.levels, trained.template, trained.trace_tokens
    )

    def plan_these(questions: Sequence[str], heads: Sequence[str]) -> Plans:
        plans = plan(questions, heads)
        return replace(plans, ranges=[LevelRange(places[one.least], places[one.most]) for one in plans.ranges])

    return plan_these


def load_planner(run: str | Path, index: LevelIndex, embed: Embed) -> Planner:
    """The planner of a run folder.

    Args:
        run: that `qrag train router`, or a learner of language models, wrote.
        index: to search.
        embed: its encoder.

    Raises:
        UsageError: as `read_planner`, or its levels are not those of the index.
        InputError: it is damaged, or reads vectors of another encoder.
    """
    found = read_planner(run)
    if isinstance(found, Router):
        return make_planner(found, index, embed)
    return ask_trained(found, index.names)
