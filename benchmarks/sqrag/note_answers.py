"""Are answers better with notes? Language models read notes, answer questions with them, and judge the answers.

    python -m benchmarks.sqrag.note_answers DATA --reader MODEL --answerer MODEL --judges MODEL MODEL [--journal FILE]
    python -m benchmarks.sqrag.note_answers DATA --reader smollm2 --answerer smollm2 --smoke      # shows that it runs
    python -m benchmarks.sqrag.note_answers table > benchmarks/sqrag/results/notes_answers.md

DATA holds hotpotqa/, musique/ and squality/ (dev.jsonl.gz each) and babi/ (qa2_valid.txt.gz). The models are files that
`load_decoder` reads or NAME@URL of servers, and all answer greedily.

* hotpot, musique: all paragraphs of --questions dev questions in one pool (a fixed draw), or the right ones with
  --distractors others of each, for time; short answers. EM, F1, and claim F1 (`eval/answers/claims.py`) by the judges.
* squality: the first two stories, each a pool of its chunks of 200 tokens, with their questions; answers of a few
  sentences, held against the first reference alone. Token F1 and claim F1.
* qa2: hidden stories (`data/stories`), the same for each reader; what notes find, no answers.

Rows of the first three: notes by none, by `mentions`, by the reader, by both, each searched in mode `best_of`; those of
the reader in mode `insert`; and FLARE (`flare.py`) without notes. The model is given the first 5 chunks as
`qrag ask` gives them, at most 3 of the notes that a chunk was found by behind it, in their own fences. Two more rows
show the same chunks as `insert` found them, so that only the showing differs: `inside` has the same notes inside of
their chunks, which is the paper's way, and `hidden` has none. The page subtracts the row that --than names from the
others, question by question. A reader that keeps fewer than 20 notes of a set has **failed** there: its rows say
nothing about notes.

`reading` counts calls and tokens of this process, `seconds` are what they took; `reading_in_all` has the calls and
tokens of the journal with them, by stage. Judges see the same claims, which the first of them finds; each one's F1
stands beside their mean; --judges without a name asks none. A set that is done is kept in DIR/answers.json, under its
settings and models, and is not asked again. DIR/answers_journal.sqlite.gz is the journal; unpacked and named by
--journal, a line that was broken off goes on from there. Its keys hold names and addresses of the models, so that it
answers these alone:

    qwen2.5-coder-1.5b-instruct-q4_k_m@http://127.0.0.1:8081/v1
    qwen2.5-coder-0.5b-instruct-q4_k_m@http://127.0.0.1:8082/v1

A server has to call its model so too (`model_alias` of xllamacpp's parameters); what the journal has needs no server.
"""

import argparse
import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.common import MODEL_HELP, arguments, machine, minilm, model_name, open_model, read_json
from benchmarks.sqrag import note_answers_table
from benchmarks.sqrag.flare import retrieve_actively
from benchmarks.sqrag.notes import K, differences
from benchmarks.sqrag.notes_table import KS
from qrag_jax.annotate.ask_chunks import Reading
from qrag_jax.annotate.chunk_questions import QuestionsConfig, make_llm_reader
from qrag_jax.annotate.mentions import mention_notes
from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.cli.progress import Progress
from qrag_jax.data.questions.multihop import READERS
from qrag_jax.data.stories.story_notes import read_stories
from qrag_jax.eval.answers.claims import score_claims
from qrag_jax.eval.answers.measure_answers import MeasureOptions, measure_answers
from qrag_jax.eval.notes.note_scores import known_vectors, noted_pool, score_notes
from qrag_jax.eval.notes.note_sets import Asked, Pool, passage_pool, read_babi_task
from qrag_jax.eval.tables import share
from qrag_jax.files.whole_file import write_json
from qrag_jax.llm.calls import SHORT_ANSWER_TOKENS, ask_all
from qrag_jax.llm.prompts import load_prompt
from qrag_jax.measures.aggregate import mean_interval
from qrag_jax.measures.answer_scores import GivenAnswer
from qrag_jax.models.encoder.embedder import TextEmbedder
from qrag_jax.names import NoteMode
from qrag_jax.search.answer import make_prompt
from qrag_jax.search.context.pack import Budget, Context, Passage, fill_context
from qrag_jax.search.note_search import NotedCorpus, make_noted_retrieve
from qrag_jax.types import (
    Document,
    Embed,
    Example,
    Generation,
    Message,
    Note,
    NoteReader,
    ReadNotes,
    Sampling,
    TextGenerator,
)

RESULTS = Path(__file__).parent / "results" / "notes" / "answers.json"
SETS = {"hotpot": "hotpotqa", "musique": "musique"}
NUM_PASSAGES, NUM_STORIES, STORY_TOKENS = 5, 2, 200
FEWEST_NOTES = 20
SEED = 0
STORY_MODES = ("none", "best_of", "insert", "random")
LONG_ANSWER = Sampling(max_tokens=160)


@dataclass(frozen=True)
class Questions:
    """A set: pools with their questions, the right answers of each, and how it is answered and scored."""

    name: str
    pools: tuple[Pool, ...]
    answers: tuple[tuple[str, ...], ...]
    template: str
    sampling: Sampling
    measures: MeasureOptions


@dataclass(frozen=True)
class Condition:
    """Who writes notes, how they are used in the search, and where the answerer reads those of its chunks."""

    reader: str
    mode: NoteMode
    shown: Literal["apart", "inside", "hidden"] = "apart"

    @property
    def name(self) -> str:
        mode = [] if self.mode in ("none", "best_of") else [self.mode]
        return ", ".join([self.reader, *mode, *([] if self.shown == "apart" else [self.shown])])


@dataclass(frozen=True)
class Told:
    """A prompt, whether all gold chunks are in it, and how many notes."""

    prompt: tuple[Message, ...]
    has_gold: bool
    num_notes: int


NONE, FLARE = "none", "none, FLARE"
CONDITIONS = (
    Condition("none", "none"),
    Condition("mentions", "best_of"),
    Condition("llm", "best_of"),
    Condition("llm", "insert"),
    Condition("llm", "insert", "inside"),
    Condition("llm", "insert", "hidden"),
    Condition("both", "best_of"),
)
ALL_CONDITIONS = (*(condition.name for condition in CONDITIONS), FLARE)


def read_paragraphs(
    data: Path, kind: str, num_questions: int, num_distractors: int | None, embed: TextEmbedder
) -> Questions:
    found = READERS[kind](data / SETS[kind] / "dev.jsonl.gz")
    rng = np.random.default_rng(SEED)
    drawn = np.sort(rng.permutation(len(found.examples))[:num_questions]).tolist()
    examples = [with_distractors(found.examples[i], num_distractors, rng) for i in drawn]
    pool = passage_pool(examples, found.titles, embed.count_tokens)
    convention = "hotpot" if kind == "hotpot" else "squad"
    measures = MeasureOptions(("em", "f1"), convention)
    short = Sampling(max_tokens=SHORT_ANSWER_TOKENS)
    answers = tuple(found.answers[i] for i in drawn)
    return Questions(kind, (pool,), answers, "short_answer", short, measures)


def with_distractors(example: Example, number: int | None, rng: np.random.Generator) -> Example:
    """The question with its right paragraphs and so many of the others, in their order; None: with all."""
    others = np.setdiff1d(np.arange(len(example.chunks)), example.gold)
    if number is None or number >= len(others):
        return example
    kept = np.sort(np.concatenate([rng.permutation(others)[:number], example.gold])).astype(int).tolist()
    gold = tuple(kept.index(place) for place in example.gold)
    return replace(example, chunks=tuple(example.chunks[place] for place in kept), gold=gold)


def read_stories_of(data: Path, num_stories: int, embed: TextEmbedder) -> Questions:
    """Questions about whole stories: no chunk is gold."""
    cut = make_chunker(ChunkConfig("recursive", max_tokens=STORY_TOKENS), embed.count_tokens)
    pools, answers = [], []
    with gzip.open(data / "squality" / "dev.jsonl.gz", "rt", encoding="utf-8") as file:
        for number, line in zip(range(num_stories), file, strict=False):
            row = json.loads(line)
            document = Document(f"story {number + 1}", row["document"])
            asked = tuple(Asked(question["question_text"], frozenset()) for question in row["questions"])
            pools.append(Pool((document,), tuple(cut(document)), asked))
            answers += [(question["responses"][0]["response_text"],) for question in row["questions"]]
    measures = MeasureOptions(("f1",))
    return Questions("squality", tuple(pools), tuple(answers), "study_answer", LONG_ANSWER, measures)


def make_reader(
    generator: TextGenerator,
    embed: TextEmbedder,
    config: QuestionsConfig,
    progress: Progress,
    taken: list[Reading],
    spent: dict[str, Counter[str]],
) -> NoteReader:
    """A reader that puts calls and tokens by stage into `spent`, of the journal too."""

    def hear(stage: str, done: int, of: int, generation: Generation | None) -> None:
        if generation is not None:
            tokens = {"read": generation.prompt_tokens, "written": generation.completion_tokens}
            spent.setdefault(stage, Counter()).update({"calls": 1, **tokens})
        progress.answered(stage, done, of, generation)

    return make_llm_reader(generator, embed, config, progress=hear, finished=taken.append)


def notes_by(reader: str, mentions: ReadNotes, llm: ReadNotes) -> tuple[Note, ...]:
    return {"none": (), "mentions": mentions.notes, "llm": llm.notes, "both": (*mentions.notes, *llm.notes)}[reader]


def make_search(noted: NotedCorpus, mode: NoteMode, embed: TextEmbedder) -> Callable[[str], Context]:
    """A query -> the first chunks, with the notes that they were found by."""
    retrieve = make_noted_retrieve("dense", noted, embed, mode)
    budget = Budget(1_000_000, embed.count_tokens, max_passages=NUM_PASSAGES)
    return lambda query: fill_context(noted.corpus, retrieve(query, noted.corpus, None), budget)


def told_by(
    questions: Questions, noted: NotedCorpus, asked: Sequence[Asked], contexts: Sequence[Context], shown: str = "apart"
) -> Iterator[Told]:
    """For each question what the answerer reads."""
    template = load_prompt(questions.template)
    for one, context in zip(asked, contexts, strict=True):
        texts = [passage.text for passage in context.passages]
        if shown == "inside":
            texts = [with_notes(noted, context, passage) for passage in context.passages]
        prompt = make_prompt(template, one.question, texts, context.notes if shown == "apart" else ())
        has_gold = one.gold <= {passage.node for passage in context.passages}
        yield Told(prompt, has_gold, 0 if shown == "hidden" else len(context.notes))


def with_notes(noted: NotedCorpus, context: Context, passage: Passage) -> str:
    """The text of a passage with the notes behind it put into it: the paper's enhanced chunk."""
    places = [noted.notes.index(given.note) for given in context.notes if given.passage == passage.number]
    return noted.text_with(int(noted.answering[places[0]]), places) if places else passage.text


def answer_set(
    questions: Questions,
    reader: NoteReader,
    taken: list[Reading],
    answerer: TextGenerator,
    judges: Sequence[TextGenerator],
    embed: TextEmbedder,
    conditions: Sequence[str],
    than: str,
) -> dict[str, Any]:
    """Rows of a set: the named conditions on the same questions, and what the reading took."""
    known = known_vectors(embed)
    start = time.perf_counter()
    llm = [reader(pool.documents, pool.chunks) for pool in questions.pools]
    seconds = time.perf_counter() - start
    if not all(one.is_complete for one in llm):
        raise SystemExit(f"{questions.name}: calls of the reader failed ({taken[-1].errors}); run it again")
    mentions = [mention_notes(pool.documents, pool.chunks) for pool in questions.pools]

    @cache  # conditions that differ only in what is shown have one search
    def searched(reader: str, mode: NoteMode) -> list[tuple[NotedCorpus, list[Context]]]:
        found = []
        for pool, first, second in zip(questions.pools, mentions, llm, strict=True):
            noted = noted_pool(pool, notes_by(reader, first, second), known, embed.count_tokens)
            search = make_search(noted, mode, embed)
            found.append((noted, [search(asked.question) for asked in pool.asked]))
        return found

    told: dict[str, list[Told]] = {}
    counts: dict[str, Mapping[str, float]] = {}
    for condition in [one for one in CONDITIONS if one.name in conditions]:
        found = searched(condition.reader, condition.mode)
        told[condition.name] = [
            one
            for pool, (noted, contexts) in zip(questions.pools, found, strict=True)
            for one in told_by(questions, noted, pool.asked, contexts, condition.shown)
        ]
        num_cross = sum(int(np.count_nonzero(noted.asking != noted.answering)) for noted, _ in found)
        counts[condition.name] = {"n_notes": sum(len(noted.notes) for noted, _ in found), "n_cross_chunk": num_cross}
    if FLARE in conditions:
        told[FLARE], counts[FLARE] = read_actively(questions, answerer, known, embed)
    generations = answer_all(questions, told, answerer)
    scores, judged = score_conditions(questions, told, generations, judges)
    rows = [
        {"condition": name, **counts[name], **seen(found, generations), **summary(scores[name], found, questions)}
        for name, found in told.items()
    ]
    return {
        "rows": rows,
        "scores": {name: {measure: listed(by) for measure, by in own.items()} for name, own in scores.items()},
        "than": than,
        "reading": asdict(sum(taken, Reading())),
        "seconds": seconds,
        "reader_failed": sum(len(one.notes) for one in llm) < FEWEST_NOTES,
        "left_out": dict(sum((Counter(one.left_out) for one in llm), Counter())),
        "mentions_left_out": dict(sum((Counter(one.left_out) for one in mentions), Counter())),
        **judged,
    }


def read_actively(
    questions: Questions, answerer: TextGenerator, known: Embed, embed: TextEmbedder
) -> tuple[list[Told], Mapping[str, float]]:
    told: list[Told] = []
    num_searches = 0
    for pool in questions.pools:
        noted = noted_pool(pool, (), known, embed.count_tokens)
        found = retrieve_actively([asked.question for asked in pool.asked], make_search(noted, "none", embed), answerer)
        told += told_by(questions, noted, pool.asked, [one.context for one in found])
        num_searches += sum(one.num_searches for one in found)
    return told, {"n_notes": 0, "n_cross_chunk": 0, "searches": num_searches / len(told)}


def answer_all(
    questions: Questions, told: Mapping[str, Sequence[Told]], answerer: TextGenerator
) -> dict[tuple[Message, ...], Generation]:
    """The answer to each prompt; those of a question follow each other: what they begin with alike is read once."""
    prompts = list(dict.fromkeys(one.prompt for same in zip(*told.values(), strict=True) for one in same))
    generations = dict(zip(prompts, ask_all(answerer, prompts, sampling=questions.sampling), strict=True))
    failed = Counter(one.error for one in generations.values() if one.error is not None)
    if failed:
        raise SystemExit(f"{questions.name}: {failed.total()} of {len(prompts)} answers failed; first of all {failed}")
    return generations


def score_conditions(
    questions: Questions,
    told: Mapping[str, Sequence[Told]],
    generations: Mapping[tuple[Message, ...], Generation],
    judges: Sequence[TextGenerator],
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """By condition and measure a score a question, NaN where there is none; all answers are judged in one batch."""
    asked = [one for pool in questions.pools for one in pool.asked]
    text_of = lambda one: generations[one.prompt].text.strip()  # noqa: E731
    given = [
        GivenAnswer(str(number), asked[number].question, text_of(one), questions.answers[number])
        for found in told.values()
        for number, one in enumerate(found)
    ]
    scored: list[dict[str, float]] = [dict(one) for one in measure_answers(given, (), questions.measures).scores]
    judged = add_claims(scored, given, judges) if judges else {}
    names = list(dict.fromkeys(name for one in scored for name in one))
    values = np.array([[one.get(name, np.nan) for name in names] for one in scored])
    by_condition = values.reshape(len(told), len(asked), len(names))
    scores = {condition: dict(zip(names, by_condition[place].T, strict=True)) for place, condition in enumerate(told)}
    empty = [(condition, name) for condition, own in scores.items() for name in own if not np.isfinite(own[name]).any()]
    if empty:
        raise SystemExit(f"{questions.name}: no score at all of {empty}; judges said {judged}")
    return scores, judged


def add_claims(
    scored: Sequence[dict[str, float]], given: Sequence[GivenAnswer], judges: Sequence[TextGenerator]
) -> dict[str, Any]:
    """Puts claim measures beside the other scores of each answer that has them; how far the judges agreed."""
    claims = score_claims(given, judges)
    for one, score, by_judge in zip(scored, claims.scores, claims.f1_by_judge, strict=True):
        if score is not None and by_judge is not None:
            one |= {"claim_precision": score.precision, "claim_recall": score.recall, "claim_f1": score.f1}
            one |= {f"claim_f1 of judge {number}": value for number, value in enumerate(by_judge, 1)}
    unscored = Counter(reason for reason in claims.errors if reason is not None)
    return {"agreement": asdict(claims.agreement), "unscored": dict(unscored), "judged": len(given)}


def listed(values: np.ndarray) -> list[float | None]:
    """As JSON has them: null where a question has no score."""
    return [float(value) if np.isfinite(value) else None for value in values]


def seen(found: Sequence[Told], generations: Mapping[tuple[Message, ...], Generation]) -> dict[str, float]:
    """Notes and tokens of a prompt, means over the questions; tokens are the answerer's own."""
    return {
        "notes_seen": float(np.mean([one.num_notes for one in found])),
        "prompt_tokens": float(np.mean([generations[one.prompt].prompt_tokens for one in found])),
    }


def summary(scores: Mapping[str, np.ndarray], found: Sequence[Told], questions: Questions) -> dict[str, Any]:
    has_gold = any(asked.gold for pool in questions.pools for asked in pool.asked)
    told = {"n": len(found), "all_gold": float(np.mean([one.has_gold for one in found])) if has_gold else None}
    for name, values in scores.items():
        one = mean_interval(values[np.isfinite(values)])
        told[name] = {"mean": one.mean, "low": one.low, "high": one.high, "n": one.n}
    return told


def score_hidden(
    data: Path, num_stories: int, readers: Mapping[str, NoteReader], embed: TextEmbedder
) -> dict[str, Any]:
    """What the notes of several readers find in the same hidden stories of qa2."""
    task = read_babi_task(data / "babi" / "qa2_valid.txt.gz", "stories", num_questions=num_stories, seed=SEED)
    pools = task(embed.count_tokens).pools
    rows, paired, left_out = [], [], {}
    for name, reader in readers.items():
        found = score_notes(
            "qa2", pools, reader, embed, embed.count_tokens, reader_name=name, modes=STORY_MODES, ks=KS, seed=SEED
        )
        rows += [asdict(row) for row in found.rows()]
        paired += [{"reader": name, **one} for one in differences(found)]
        left_out[name] = dict(found.left_out)
    return {"rows": rows, "differences": paired, "left_out": left_out}


def run(args: argparse.Namespace) -> None:
    embed, models = minilm(), cache(partial(open_model, journal=args.journal))
    config = QuestionsConfig(num_questions=args.num_questions, most_relevant=args.most_relevant)
    names = [model_name(name) for name in (args.reader, args.answerer, *args.judges)]
    sets: dict[str, Callable[[], Questions]] = {
        kind: partial(read_paragraphs, args.data, kind, args.questions, args.distractors, embed) for kind in SETS
    }
    sets["squality"] = partial(read_stories_of, args.data, args.squality_stories, embed)
    done: dict[str, Any] = read_json(args.out)
    for name in args.only:
        key = ", ".join([name, *settings(name, args), *(names if name != "qa2" else names[:1])])
        if key in done:
            continue
        with Progress() as progress:
            taken: list[Reading] = []
            spent: dict[str, Counter[str]] = {}
            reader = make_reader(models(args.reader), embed, config, progress, taken, spent)
            if name == "qa2":
                done[key] = score_hidden(
                    args.data, args.stories, {"scripted": read_stories, names[0]: reader}, embed
                ) | {"reading": asdict(sum(taken, Reading()))}
            else:
                judges = [models(judge) for judge in args.judges]
                done[key] = answer_set(
                    sets[name](), reader, taken, models(args.answerer), judges, embed, args.conditions, args.than
                )
        done[key] |= {"reading_in_all": spent, "machine": machine()}
        print(key, *lines(done[key]), sep="\n  ", flush=True)
        if not args.smoke:
            write_json(args.out, done, indent=None)


def settings(name: str, args: argparse.Namespace) -> list[str]:
    """What tells a run on a set from other runs on it."""
    reading = [f"{args.num_questions} asked and {args.most_relevant} answered a chunk"]
    if name == "qa2":
        return [f"{args.stories} stories", *reading]
    if name == "squality":
        of = [f"{args.squality_stories} stories"]
    else:
        of = [f"{args.questions} questions"]
        of += [] if args.distractors is None else [f"{args.distractors} distractors"]
    part = [] if list(args.conditions) == list(ALL_CONDITIONS) else [" + ".join(args.conditions)]
    than = [] if args.than == NONE else [f"than {args.than}"]
    return [*of, *reading, *part, *than]


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("reader_failed"):
        yield f"FAILED: the reader kept fewer than {FEWEST_NOTES} notes; rows of its notes say nothing"
    for row in found["rows"]:
        if "condition" in row:
            scores = [f"{name} {share(v['mean'], 2)}" for name, v in row.items() if isinstance(v, dict)]
            yield f"{row['condition']}: {row['n_notes']} notes, all gold {row['all_gold']}, {', '.join(scores)}"
        elif row["k"] == K:
            yield f"{row['reader']}, {row['mode']}: {row['n_notes']} notes, all gold {share(row['all_gold'], 2)}"


def main() -> None:
    parser = arguments(__doc__, smoke="very few questions, printed and not kept")
    parser.add_argument("data", type=Path, help="DATA, or table")
    parser.add_argument("--reader", metavar="MODEL", help=f"writes notes: {MODEL_HELP}")
    parser.add_argument("--answerer", metavar="MODEL", help="answers")
    parser.add_argument("--judges", nargs="*", metavar="MODEL", help="of claims; none if none is named; the answerer")
    parser.add_argument("--only", nargs="+", default=[*SETS, "squality", "qa2"], metavar="SET")
    parser.add_argument(
        "--conditions", nargs="+", default=ALL_CONDITIONS, choices=ALL_CONDITIONS, metavar="NAME",
        help=f"of {', '.join(ALL_CONDITIONS)} (all)",
    )  # fmt: skip
    parser.add_argument("--than", default=NONE, metavar="NAME", help=f"what the others are compared with ({NONE})")
    parser.add_argument("--questions", type=int, default=60, metavar="N", help="of hotpot and musique each")
    parser.add_argument("--distractors", type=int, metavar="N", help="of these, a question's wrong paragraphs (all)")
    parser.add_argument("--squality_stories", type=int, default=NUM_STORIES, metavar="N")
    parser.add_argument("--stories", type=int, default=10, metavar="N", help="of qa2")
    parser.add_argument("--num_questions", type=int, default=3, metavar="N", help="of a chunk, at most")
    parser.add_argument("--most_relevant", type=int, default=8, metavar="N", help="questions that are put to a chunk")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="keeps all answers of models")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args()
    if str(args.data) == "table":
        print(note_answers_table.page(read_json(args.out), SEED))
        return
    if not (args.reader and args.answerer):
        parser.error("--reader MODEL and --answerer MODEL: name both")
    args.judges = [args.answerer] if args.judges is None else args.judges
    if args.than not in args.conditions:
        parser.error(f"--conditions: all others are compared with {args.than}; name it too")
    if args.smoke:
        args.questions, args.squality_stories, args.stories, args.num_questions, args.most_relevant = 1, 1, 1, 2, 1
    run(args)


if __name__ == "__main__":
    main()
