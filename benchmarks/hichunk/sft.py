"""Fine-tunes a small decoder to find sections (HiChunk), and scores it beside the same model before training.

    python -m benchmarks.hichunk.sft DATA --out DIR --cpu    # 100,000 tokens, 80 minutes on one core
    python -m benchmarks.hichunk.sft DATA --out DIR          # all passes in bfloat16, on a GPU
    python -m benchmarks.hichunk.sft --out DIR --smoke       # a tiny random decoder on six small files, in a minute

DATA holds wikitext2/ and scisumm/. A second call with the same DIR continues: a finished part is not repeated.

1. DIR/train.jsonl: windows of the documents that the packaged tagger learned from, as `make_examples` makes them, once
   without headings (`removed`) and once with headings as lines (`plain`). Of windows without a row, one of four stays.
   With --cpu they are windows of documents as they are, articles and papers in turn, until the tokens are enough.
   Otherwise they are all, with three shuffled orders and three with omissions, which is seven passes.
2. DIR/run: `qrag train sft configs/hichunk/sft.yaml --out DIR/run 'data.paths=[DIR/train.jsonl]'`.
3. Three documents that neither the decoder nor the tagger has seen, two articles and one paper, drawn with a fixed seed
   from those of 50 to 120 sentences and at least six points. HiChunk (`make_hichunk`) reads them with the model before
   and after training, greedy and with its grammar. Its answers are in DIR/answers.sqlite.

With --cpu the prompt is the short one of `sft_prompts/`, because the built-in one has 450 tokens. The
model before training reads with both.

Without --cpu there are about 55M tokens, seven passes over two views. At 2.2 GFLOP a token and a quarter of the peak of
an H200 they take ten minutes. This is arithmetic: only --smoke and --cpu were run.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.common import ROOT, about, about_lines, arguments, minilm, qrag, write
from benchmarks.hichunk.points_llm import asked, methods_table, scored, sentence_points
from benchmarks.hichunk.tagger_default import training_documents, unseen_documents
from qrag_jax.annotate.hichunk import HiChunkConfig, make_hichunk
from qrag_jax.annotate.hichunk_examples import Example, ExamplesConfig, make_examples, write_examples
from qrag_jax.chunking.tree.boundaries import Point, PredictPoints, paragraph_points, predict_checked, rule_points
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.eval.tables import align
from qrag_jax.files.whole_file import write_whole
from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.local import LocalGenerator
from qrag_jax.models.decoder.network import init_params
from qrag_jax.models.decoder.weights import load_decoder, save_decoder
from qrag_jax.models.tagger.predict import make_tagger_points
from qrag_jax.models.tagger.tagger import load_tagger
from qrag_jax.names import View
from qrag_jax.types import CountTokens, TextGenerator

RESULTS = Path(__file__).parent / "results"
CONFIG = ROOT / "configs" / "hichunk" / "sft.yaml"
SHORT_PROMPTS = Path(__file__).parent / "sft_prompts"
STATION = ROOT / "examples" / "station"
VIEWS: tuple[View, ...] = ("removed", "plain")
SEED = 0
HELD_OUT = {"articles": 2, "papers": 1}
SENTENCES = range(50, 121)  # of a held-out document
EMPTY_SHARE = 0.25  # of the windows without a row
TURN_TOKENS = 8  # of a chat template around a message, at most
ANSWER_TOKENS = 400
CURVE_POINTS = 20
BEFORE, BEFORE_LONG, AFTER = "HiChunk, before training", "the same, built-in prompt", "HiChunk, trained"

Held = dict[View, list[HeadedDocument]]
Rows = dict[View, list[dict[str, Any]]]


@dataclass(frozen=True)
class Setting:
    """Sizes of an experiment.

    Attributes:
        model: that is trained.
        window_tokens: of the lines of a window.
        row_tokens: most tokens of a conversation; longer ones are left out and counted.
        tokens: of all conversations; None takes all.
        num_orders: as in `ExamplesConfig`.
        prompts: folder of templates; None uses the built-in ones.
        fields: changes of the training config.
    """

    model: str
    window_tokens: int
    row_tokens: int
    tokens: int | None
    num_orders: int
    prompts: Path | None
    fields: tuple[str, ...]


CPU = Setting("smollm2", 320, 464, 100_000, 0, SHORT_PROMPTS, ("imitation.width=464",))
FULL = Setting(
    "smollm2", 6_000, 8_192, None, 3, None,
    ("model.dtype=bfloat16", "imitation.width=8192", "imitation.batch_rows=4", "save_every=500"),
)  # fmt: skip
SMOKE = replace(CPU, window_tokens=64, tokens=3_000, num_orders=1, fields=("imitation.width=256",))


# --- data ------------------------------------------------------------------------------------------------------------


def read_documents(data: Path | None) -> tuple[list[list[HeadedDocument]], Held]:
    """Training documents, one group for each domain and view, and held-out documents, the same in each view."""
    if data is None:
        views = {view: read_headed(str(STATION), view) for view in VIEWS}
        return [own[3:] for own in views.values()], {view: own[:3] for view, own in views.items()}
    training = [group for view in VIEWS for group in training_documents(data, view).values()]
    unseen = {view: unseen_documents(data, view) for view in VIEWS}
    places = list[tuple[str, int]]()
    for kind, number in HELD_OUT.items():
        own = enumerate(unseen["removed"][kind])
        fit = [place for place, one in own if len(one.text) in SENTENCES and len(one.points) > 5]
        drawn = np.random.default_rng(SEED).permutation(len(fit))[:number]
        places += [(kind, fit[i]) for i in drawn]
    return training, {view: [unseen[view][kind][place] for kind, place in places] for view in VIEWS}


def examples_of(groups: Iterable[Sequence[HeadedDocument]], count: CountTokens, setting: Setting) -> list[Example]:
    """The conversations to train on, from each group of documents in turn; says how many."""
    config = ExamplesConfig(window_tokens=setting.window_tokens, num_orders=setting.num_orders, prompts=setting.prompts)
    pools = list[list[Example]]()
    for number, group in enumerate(groups):
        rng = random.Random(f"{SEED} {number}")
        own = [one for one in make_examples(group, count, config) if one.rows or rng.random() < EMPTY_SHARE]
        pools.append(rng.sample(own, len(own)))
    kept, total, num_long = list[Example](), 0, 0
    for one in (one for one in chain.from_iterable(zip_longest(*pools)) if one is not None):
        size = tokens_of(one, count)
        if size > setting.row_tokens:
            num_long += 1
            continue
        if setting.tokens is not None and total + size > setting.tokens:
            break
        kept.append(one)
        total += size
    empty = sum(not one.rows for one in kept)
    print(f"{len(kept):,} conversations of {total:,} tokens, {empty:,} without a row; {num_long:,} too long, left out")
    return kept


def tokens_of(example: Example, count: CountTokens) -> int:
    """Tokens of a conversation with its chat template, about."""
    return sum(count(message.content) + TURN_TOKENS for message in example.messages)


def tiny_decoder(folder: Path) -> str:
    """A random decoder with the tokenizer and chat template of SmolLM2."""
    known = load_decoder("smollm2")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1}
    config = replace(known.config, **sizes, head_dim=8)
    save_decoder(folder, replace(known, config=config, params=init_params(config, jax.random.key(SEED))))
    return str(folder)


# --- scores ----------------------------------------------------------------------------------------------------------


def cheap_rows(held: Held) -> Rows:
    """The rows of methods without a language model."""
    methods: dict[str, PredictPoints] = {
        "every sentence": sentence_points,
        "every paragraph": paragraph_points,
        "lines that look like headings": rule_points,
        "tagger (packaged)": make_tagger_points(load_tagger(None), minilm()),
    }

    def points(predict: PredictPoints, documents: Sequence[HeadedDocument]) -> list[list[Point]]:
        return predict_checked(predict, [one.text for one in documents], [one.id for one in documents])

    return {
        view: [scored(name, documents, points(predict, documents)) for name, predict in methods.items()]
        for view, documents in held.items()
    }


def model_rows(model: str, journal: Path, held: Held, setting: Setting, prompts: dict[str, Path | None]) -> Rows:
    """The rows of HiChunk with a model, greedy.

    Args:
        model: source of the model; its parameters are read as float32, before training and after it.
        journal: keeps the answers.
        prompts: name of a row -> templates.
    """
    local = LocalGenerator(load_decoder(model))
    generator = JournaledGenerator(local, Journal(journal), claim_size=8)
    rows: Rows = {view: [] for view in held}
    for name, folder in prompts.items():
        config = HiChunkConfig(setting.window_tokens, max_answer_tokens=ANSWER_TOKENS, prompts=folder)
        for view, documents in held.items():
            texts = [one.text for one in documents]
            found, took = asked(partial(hichunk, config), generator, local.count_tokens, texts)
            rows[view].append(scored(name, documents, found) | {"took": took})
            print(f"{name}, {view}: F1 {rows[view][-1]['f1_any']['mean']:.3f}", flush=True)
    return rows


def hichunk(config: HiChunkConfig, generator: TextGenerator, count: CountTokens, **told: Any) -> PredictPoints:
    """`make_hichunk` as `points_llm.asked` calls it."""
    return make_hichunk(generator, count, config, **told)


# --- report ----------------------------------------------------------------------------------------------------------


def read_curve(run: Path) -> list[tuple[int, float]]:
    """(update, loss) of each line of the log."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["imitation"]) for line in lines if "imitation" in line]


def curve_table(curve: Sequence[tuple[int, float]]) -> list[str]:
    """Means of the loss over some twenty equal parts of the run."""
    parts = [part for part in np.array_split(np.array(curve), min(CURVE_POINTS, len(curve))) if len(part)]
    rows = [(f"{part[0, 0]:.0f} to {part[-1, 0]:.0f}", f"{part[:, 1].mean():.3f}") for part in parts]
    return align([("updates", "loss"), *rows], (False, True), markdown=True)


def draw_curve(curve: Sequence[tuple[int, float]], path: Path) -> None:
    """The loss of each update, and its mean over the last twenty."""
    from matplotlib.figure import Figure

    steps, losses = np.array(curve).T
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, losses, color="0.75", linewidth=0.8, label="update")
    mean = [losses[max(0, end - 20) : end].mean() for end in range(1, len(losses) + 1)]
    axes.plot(steps, mean, label="mean of 20")
    axes.set(xlabel="updates", ylabel="loss of answer tokens (nats)")
    axes.legend()
    figure.savefig(path, dpi=120)


def format_report(result: dict[str, Any], plot: str) -> str:
    lines = ["# A decoder that is trained to find sections", "", f"`{result['command']}`", ""]
    lines += about_lines(result["about"])
    lines += [f"Training: {result['trained']}.", "", *curve_table(result["curve"]), "", f"![loss]({plot})", ""]
    lines += [f"Held-out documents: {', '.join(result['held_out'])}."]
    for view, rows in result["tables"].items():
        told = f"{rows[0]['right']} points; s, read and written: a document"
        lines += ["", f"## {view}", "", told, "", *methods_table(rows)]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = arguments(__doc__, smoke="train a tiny random decoder on examples/station")
    parser.add_argument("data", type=Path, nargs="?", metavar="DATA", help="folder with wikitext2/ and scisumm/")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of examples, run and answers")
    parser.add_argument("--cpu", action="store_true", help="100,000 tokens in rows of 464, float32")
    parser.add_argument("--model", help="decoder to train (default: smollm2)")
    parser.add_argument("--tokens", type=int, metavar="N", help="train on about so many tokens")
    parser.add_argument("fields", nargs="*", metavar="key=value", help="changes of the training config")
    args = parser.parse_intermixed_args()
    if (args.data is None) != args.smoke:
        parser.error("give DATA, or --smoke")
    args.out.mkdir(parents=True, exist_ok=True)
    setting = SMOKE if args.smoke else CPU if args.cpu else FULL
    model = args.model or (tiny_decoder(args.out / "tiny") if args.smoke else setting.model)
    setting = replace(setting, model=model, tokens=args.tokens or setting.tokens)
    groups, held = read_documents(args.data)
    journal, run, train = args.out / "answers.sqlite", args.out / "run", args.out / "train.jsonl"

    if not train.exists():
        count = LocalGenerator(load_decoder(model)).count_tokens
        chats = examples_of(groups, count, setting)
        sizes = {"chats": len(chats), "tokens": sum(tokens_of(one, count) for one in chats)}
        write_whole(args.out / "train.json", json.dumps(sizes))
        write_examples(train, chats)
    before = {BEFORE: setting.prompts} | ({BEFORE_LONG: None} if setting.prompts is not None else {})
    tables = [cheap_rows(held), model_rows(model, journal, held, setting, before)]
    if not (run / "results.json").exists():
        fields = (f"model.source={model}", f"data.paths=[{train}]", *setting.fields, *args.fields)
        qrag("train", "sft", str(CONFIG), "--out", run, *fields)
    tables.append(model_rows(str(run), journal, held, setting, {AFTER: setting.prompts}))

    sizes = json.loads((args.out / "train.json").read_text())
    trained, curve = json.loads((run / "results.json").read_text()), read_curve(run)
    flags = [*(["--smoke"] if args.smoke else ["DATA"]), "--out DIR", *(["--cpu"] if args.cpu else []), *args.fields]
    flags += [f"--tokens {args.tokens}"] if args.tokens else []
    result = {
        "command": f"python -m benchmarks.hichunk.sft {' '.join(flags)}",
        "about": about(),
        "trained": f"{sizes['chats']:,} chats of {sizes['tokens']:,} tokens in {trained['seconds']:,.0f} s",
        "curve": curve,
        "held_out": [one.id for one in held["removed"]],
        "tables": {view: [row for table in tables for row in table[view]] for view in VIEWS},
    }
    folder, name = (args.out if args.smoke else RESULTS), "sft" if args.cpu or args.smoke else "sft_full"
    folder.mkdir(parents=True, exist_ok=True)
    draw_curve(curve, folder / f"{name}.png")
    write(folder, name, result, format_report(result, f"{name}.png"))


if __name__ == "__main__":
    main()
