"""Answers about whole stories from contexts of different levels: ROUGE-L, where no evidence is labelled.

    nice python benchmarks/level_answers.py DATA --models MODEL [MODEL ...] [--stories N] [--journal FILE]

DATA holds squality/dev.jsonl.gz. Each story is an index of its own, its levels spans of at most 512, 256, 128 and 64
tokens within each other; parents have the mean of their children's vectors by MiniLM. A context of --budget tokens is
filled from one level, from all of them in one list, or by the best child, and a language model answers greedily in one
to three sentences. ROUGE-L is the largest over the references (four a question); differences are paired by question to
spans of 128 tokens, with 95% bootstrap intervals. "nothing" has an empty context: what the model says without a story.
"""

import argparse
import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from embed import RESULTS, about, about_lines, write
from language_models import MODEL_HELP, model_name, open_model

from qrag_jax.chunking.chunker import ChunkConfig, make_tree_builder
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.tree.level_ranges import LevelRange, full_range, size_names
from qrag_jax.chunking.tree.parent_vectors import Parents, mean_of_children
from qrag_jax.eval.answers.measure_answers import MeasureOptions, measure_answers
from qrag_jax.eval.tables import align, share
from qrag_jax.llm.calls import ask_all
from qrag_jax.llm.prompts import load_prompt
from qrag_jax.measures.aggregate import mean_interval, paired_difference
from qrag_jax.measures.answer_scores import GivenAnswer
from qrag_jax.models.encoder.embedder import TextEmbedder, make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.search.answer import make_prompt
from qrag_jax.search.context.pack import Budget
from qrag_jax.search.corpus import embed_corpus, tree_corpus
from qrag_jax.search.levels.level_context import fill_levels
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.planned_search import PlannedSearch
from qrag_jax.search.levels.planners import constant
from qrag_jax.types import Document, Sampling, TextGenerator

SIZES = (512, 256, 128, 64)
NAMES = size_names(SIZES)
REFERENCE, NOTHING = "128", "nothing"
SAMPLING = Sampling(max_tokens=160)
SEED = 0
# Row -> the levels that are searched, and how parents are found.
ROWS: dict[str, tuple[LevelRange, str]] = {
    **{NAMES[level]: (LevelRange(level, level), "mean") for level in range(1, len(NAMES))},
    "all levels": (full_range(NAMES), "mean"),
    "256 by best child": (LevelRange(2, 2), "best_child"),
}
Asked = tuple[str, tuple[str, ...], dict[str, list[str]]]  # a question, its references, and passages by row


def read_stories(data: Path, number: int) -> Iterator[tuple[Document, list[tuple[str, tuple[str, ...]]]]]:
    """Stories with their questions and references."""
    with gzip.open(data / "squality" / "dev.jsonl.gz", "rt", encoding="utf-8") as file:
        for place, line in enumerate(itertools.islice(file, number), start=1):
            row = json.loads(line)
            asked = [
                (one["question_text"], tuple(answer["response_text"] for answer in one["responses"]))
                for one in row["questions"]
            ]
            yield Document(f"story {place}", row["document"]), asked


def searches(story: Document, embed: TextEmbedder, budget: int) -> dict[str, Callable[[str], list[str]]]:
    """Row -> what gives the passages of a question."""
    build = make_tree_builder(ChunkConfig("levels", levels=LevelsConfig(sizes=SIZES)), embed.count_tokens)
    corpus = embed_corpus(tree_corpus((story,), [build(story)], embed.count_tokens), embed)
    indexes = {
        "mean": LevelIndex(corpus, NAMES, Parents("mean", of_children=mean_of_children)),
        "best_child": LevelIndex(corpus, NAMES, Parents("best_child")),
    }

    def search(levels: LevelRange, parents: str) -> Callable[[str], list[str]]:
        planned = PlannedSearch(indexes[parents], embed, constant(levels))
        limit = Budget(budget, embed.count_tokens, max_notes=0)

        def passages(question: str) -> list[str]:
            ranked = planned.retrieve(question, corpus, None)
            return [one.text for one in fill_levels(corpus, ranked, limit).passages]

        return passages

    return {name: search(*one) for name, one in ROWS.items()} | {NOTHING: lambda _: []}


def ask_about(data: Path, num_stories: int, embed: TextEmbedder, budget: int) -> list[Asked]:
    """All questions of all stories with their passages by row."""
    found: list[Asked] = []
    for story, asked in read_stories(data, num_stories):
        rows = searches(story, embed, budget)
        found += [(text, right, {name: of(text) for name, of in rows.items()}) for text, right in asked]
        print(f"{story.id}: searched", flush=True)
    return found


def score(asked: list[Asked], generator: TextGenerator, name: str) -> list[dict[str, Any]]:
    """A row for each context: ROUGE-L, its difference to the reference, words an answer has."""
    template = load_prompt("study_answer")
    prompts = {
        row: [make_prompt(template, text, passages[row]) for text, _, passages in asked] for row in (*ROWS, NOTHING)
    }
    different = list(dict.fromkeys(prompt for some in prompts.values() for prompt in some))
    answers = dict(zip(different, ask_all(generator, different, sampling=SAMPLING), strict=True))
    failed = [one.error for one in answers.values() if one.error is not None]
    if failed:
        raise SystemExit(f"{name}: {len(failed)} of {len(different)} answers failed ({failed[0]}); nothing is kept")
    scores, words = {}, {}
    for row, some in prompts.items():
        texts = [answers[prompt].text.strip() for prompt in some]
        given = [
            GivenAnswer(str(number), text, answer, right)
            for number, ((text, right, _), answer) in enumerate(zip(asked, texts, strict=True))
        ]
        measured = measure_answers(given, options=MeasureOptions(("rouge_l",)))
        scores[row] = np.array([one["rouge_l"] for one in measured.scores])
        words[row] = float(np.mean([len(text.split()) for text in texts]))
    return [
        {"model": name, "levels": row, **asdict(mean_interval(values, seed=SEED)), "words": words[row]}
        | {"over": None if row == REFERENCE else asdict(paired_difference(values, scores[REFERENCE], seed=SEED))}
        for row, values in scores.items()
    ]


def format_report(result: dict[str, Any]) -> str:
    lines = ["# Answers about stories from contexts of levels", "", f"`{result['command']}`.", ""]
    lines += about_lines(result["about"])
    lines += [
        f"ROUGE-L of answers to questions of SQuALITY's dev stories, {result['budget']:,} tokens of context, beside it "
        f"the paired difference to spans of {REFERENCE} tokens [95%]. SQuALITY labels no evidence. See "
        "`benchmarks/level_answers.py` for the rows.",
        "",
    ]
    for model in dict.fromkeys(row["model"] for row in result["rows"]):
        own = [row for row in result["rows"] if row["model"] == model]
        lines += [f"## {model}, {own[0]['n']} questions", ""]
        table = [["levels", "ROUGE-L", f"- {REFERENCE}", "words an answer"], *map(_cells, own)]
        lines += [*align(table, [False, True, True, True], markdown=True), ""]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    def interval(one: dict[str, Any], sign: str = "") -> str:
        mean, low, high = (share(one[name], sign=sign) for name in ("mean", "low", "high"))
        return f"{mean} [{low}, {high}]"

    over = interval(row["over"], "+") if row["over"] else ""
    return [row["levels"], interval(row), over, f"{row['words']:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the data sets")
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL", help=f"each {MODEL_HELP}")
    parser.add_argument(
        "--stories", nargs="+", type=int, default=[4], metavar="N", help="of each model, or one for all"
    )
    parser.add_argument("--budget", type=int, default=512, help="tokens of a context (default: %(default)s)")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="keeps all answers")
    args = parser.parse_args()
    stories = args.stories * len(args.models) if len(args.stories) == 1 else args.stories
    if len(stories) != len(args.models):
        parser.error(f"--stories: {len(stories)} numbers for {len(args.models)} models")
    embed, rows = make_embedder(load_encoder("minilm")), []
    for source, number in zip(args.models, stories, strict=True):
        asked = ask_about(args.data, number, embed, args.budget)
        rows += score(asked, open_model(source, args.journal), model_name(source))
    names = " ".join(map(model_name, args.models))
    command = f"python benchmarks/level_answers.py DATA --models {names} --stories {' '.join(map(str, stories))}"
    result = {"command": command, "about": about(), "seed": SEED, "budget": args.budget, "rows": rows}
    write(RESULTS, "level_answers", result, format_report(result))


if __name__ == "__main__":
    main()
