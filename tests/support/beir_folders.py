"""A small BEIR folder of few words, so that rankings are neither perfect nor blind."""

import json
import random
from pathlib import Path

WORDS = "river stone cloud market window letter winter castle forest island music paper barley harbour lantern".split()


def make_rows(num_documents: int = 40, num_questions: int = 12, seed: int = 0):
    """Documents (id, title, text), questions (id, text), and graded judgements by question and document."""
    rnd = random.Random(seed)
    documents = [
        (
            f"d{number}",
            rnd.choice(["", f"The {rnd.choice(WORDS)}"]),
            " ".join(rnd.choices(WORDS, k=12)).capitalize() + ".",
        )
        for number in range(num_documents)
    ]
    questions = [(f"q{n}", f"Where is the {' '.join(rnd.sample(WORDS, 3))}?") for n in range(num_questions)]
    judged = {}
    for name, text in questions:
        shared = {one: sum(word in body.lower() for word in text[:-1].split()[3:]) for one, _, body in documents}
        best = sorted(shared, key=lambda one: shared[one], reverse=True)[:5]
        judged[name] = {one: rnd.choice([0, 1, 1, 2, 3]) for one in best} | {best[0]: 1}
    return documents, questions, judged


def write_beir(folder: Path, rows, split: str = "test") -> Path:
    """Writes rows as `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`; returns the folder."""
    documents, questions, judged = rows
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    corpus = [json.dumps({"_id": name, "title": title, "text": text}) for name, title, text in documents]
    (folder / "corpus.jsonl").write_text("\n".join(corpus))
    (folder / "queries.jsonl").write_text("\n".join(json.dumps({"_id": n, "text": text}) for n, text in questions))
    lines = [f"{query}\t{name}\t{value}" for query, own in judged.items() for name, value in own.items()]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    return folder
