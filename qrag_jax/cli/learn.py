"""`qrag learn`: trains a retriever on your own documents, without labels."""

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.cli import llm_flags
from qrag_jax.cli.flags import made
from qrag_jax.cli.output_paths import STDOUT, check_output
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say, shown, shown_lines, write_json
from qrag_jax.types import UsageError

if TYPE_CHECKING:
    from qrag_jax.service.learning import Learned

_DESCRIPTION = """\
Train a retriever on your own documents, without a single label.

The questions are made of the documents: a name that two passages share is hidden, and words of both ask for it. So a
question needs both passages, and the retriever learns to follow names, titles and headings from one to the next.

Questions that begin in a fifth of the documents are held out. Half of them choose the update, which may be 0, plain
search; for the other half a table shows how often all passages are found among four, beside plain search.

RUN is a run folder: qrag find RUN INDEX "question". It also has questions.jsonl (for `qrag train`) and pairs.jsonl (for
`qrag train reranker`).
"""
_DETAILS = f"""\
Kinds of questions: bridge (a passage names the topic of another), chain (two such steps), shared (a rare name or
identifier), comparison (two similar topics), double (two bridges), single (one sentence). A folder in which nothing is
shared is refused: plain search needs no training there.

Made questions are words, and not what people ask. Where they say that the run is not better than plain search, use
plain search. Where they say that it is, try it with questions of your own: qrag eval RUN --corpus INDEX --jsonl FILE.

With --llm_model a language model writes questions too. One is kept if it is answered from its passages and not without
them.

{llm_flags.HELP}"""
_EXAMPLES = """\
examples:
  qrag learn handbook/ --out runs/handbook
  qrag learn notes.index --out runs/notes --show 20
  qrag learn notes.index --out runs/notes --llm openai --base_url http://127.0.0.1:8080/v1 --llm_model qwen3
"""
_FLAGS = f"""\
paths PATH ...             files and folders, or an index
--out! RUN                 run folder to write
--most N = 350             most questions of each kind; bridges twice as many
--num_updates N = 200      updates of training
. --max_chunks N = 20000   learn from documents drawn at random up to so many chunks, if there are more
--show I = 0               print I of the questions, of every kind
--num_asked N = 300        with a language model: questions to ask it for
--encoding --seed --follow_links --max_input_gb --no_compile_cache
--json [OUT] = -           write the result as JSON; without OUT, or with -, print it instead of the table
{llm_flags.llm_table(200)}"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.cli.progress import Progress, WithBar
    from qrag_jax.service.learning import LearnRequest, learn

    _check_places(args)
    llm = llm_flags.llm_config(vars(args)) if llm_flags.given_flags(vars(args), ()) else None
    request = made(LearnRequest, vars(args), paths=tuple(args.paths), llm=llm)
    with Progress() as progress:
        learned = learn(request, progress.watch(), WithBar)
    if args.json:
        write_json(to_json(learned), args.json)
    for line in _told(learned):
        say(line)
    say(f'next: qrag find {" ".join(map(shlex.quote, [args.out, *args.paths]))} "question"')
    if args.json != STDOUT:
        print(shown_lines(format_learned(learned, args.show)))
    return 0


def _check_places(args: argparse.Namespace) -> None:
    """Refuses places for the results that are in the documents, before anything is read."""
    if args.json not in (None, STDOUT):
        check_output(vars(args), "json")
    sources = [Path(os.path.realpath(path)) for path in args.paths]
    for flag in ("out", "json"):
        given = getattr(args, flag)
        place = None if given in (None, STDOUT) else Path(os.path.realpath(given))
        above = next((one for one in sources if place is not None and place.is_relative_to(one)), None)
        if above is not None:
            raise UsageError(f"--{flag} {given}: is in {above}, which is read; name a place elsewhere")


def to_json(learned: "Learned") -> dict[str, object]:
    """The result as JSON values, with all questions."""
    gain = learned.gain
    return {
        "run": str(learned.out),
        "update": learned.update,
        "kinds": dict(learned.kinds),
        "left_out": dict(learned.left_out),
        "rows": list(learned.rows),
        "gain": {"mean": gain.mean, "low": gain.low, "high": gain.high, "p_value": gain.p_value, "n": gain.n},
        "questions": list(learned.questions),
    }


def format_learned(learned: "Learned", show: int) -> str:
    """The table of held-out questions, below the first `show` questions, which are of all kinds in turn."""
    from qrag_jax.eval.tables import align, share

    kinds = list(dict.fromkeys(str(row["kind"]) for row in learned.rows))
    heads = ["all passages among 4", *(kind or "all" for kind in kinds)]
    lines = []
    for method in dict.fromkeys(str(row["method"]) for row in learned.rows):
        own = {row["kind"]: row for row in learned.rows if row["method"] == method}
        lines.append([method, *(share(own[kind]["all_gold"]) for kind in kinds)])
    number = {row["kind"]: row["n"] for row in learned.rows}
    table = align([heads, *lines, ["questions", *(f"{number[kind]:,}" for kind in kinds)]])
    by_kind = [[one for one in learned.questions if one["kind"] == kind] for kind in learned.kinds]
    turns = [own[turn] for turn in range(max(map(len, by_kind), default=0)) for own in by_kind if turn < len(own)]
    asked = [f"{one['kind']}: {shown(one['question'])} -> {' + '.join(one['passages'])}" for one in turns[:show]]
    return "\n".join([*asked, *([""] if asked else []), *table])


def _told(learned: "Learned") -> list[str]:
    """The verdict, and what to do next."""
    gain = learned.gain
    left_out = ", ".join(f"{number:,} {reason}" for reason, number in learned.left_out.items())
    numbers = (
        f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}], p {gain.p_value:.4f}, {gain.n:,} held-out questions"
    )
    lines = [f"drafts left out: {left_out}"] if left_out else []
    if learned.update == 0:
        lines.append("training did not help here: the run is plain search (update 0)")
    else:
        lines.append(f"update {learned.update:,} is kept, whose mean return was best or equal to the best")
    if gain.is_significant and gain.mean > 0:
        lines.append(f"the run finds all passages more often than plain search: {numbers}")
    else:
        lines.append(f"the run is not shown to be better than plain search; use plain search: {numbers}")
    return lines


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run, details=_DETAILS)
