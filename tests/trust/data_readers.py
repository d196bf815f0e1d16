"""Readers of documents, questions and published sets."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support.documents import paragraph, picture, tiny_docx, tiny_epub, tiny_pdf
from trust.samples import PROSE, Reader, texts

from qrag_jax.data.corpora.beir import read_beir
from qrag_jax.data.corpora.chroma import read_chroma
from qrag_jax.data.corpora.conditionalqa import read_conditionalqa
from qrag_jax.data.corpora.cranfield import read_cranfield
from qrag_jax.data.corpora.file_questions import read_with_problems
from qrag_jax.data.corpora.financebench import read_financebench
from qrag_jax.data.corpora.headed_documents import read_headed
from qrag_jax.data.corpora.multirc import read_multirc
from qrag_jax.data.corpora.scisumm import read_scisumm
from qrag_jax.data.corpora.squad import read_squad
from qrag_jax.data.questions.examples import read_examples
from qrag_jax.data.questions.multihop import read_2wiki, read_hotpot, read_musique
from qrag_jax.data.questions.vector_task import read_vector_task
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.haystack import load_haystack
from qrag_jax.documents.kinds import is_installed
from qrag_jax.documents.read import read_files
from qrag_jax.files.text_files import read_text_file

# Documents, questions, stories.

EXAMPLES = [
    {"question": "Who?", "chunks": ["Ada mills.", "It rains."], "gold": [0], "id": "a", "answer": "Ada"},
    {"question": "What falls?", "chunks": ["Rye.", "Rain.", "Oats."], "gold": [1, 2], "id": 7},
]
BABI = (
    "1 Mary went to the kitchen.\n2 John took the milk.\n3 Where is Mary?\tkitchen\t1\n1 It rains.\n2 What?\train\t1\n"
)
NOVELS = [
    {"id": "n1", "title": "Rye", "sections": [{"head": "I", "paras": ["Rye is a grass of the fields. It is hardy."]}]},
    {"id": "n2", "title": "Sea", "sections": [{"head": "I", "paras": ["The sea was calm and wide today.", "So."]}]},
]
HOTPOT = [
    {
        "_id": name, "question": "Which river?", "answer": "Oru", "type": "bridge",
        "context": [["Oru", ["The Oru is a river.", "It is long."]], ["Fen", ["Fen is wet."]], ["", ["x"]]],
        "supporting_facts": [["Oru", 1], ["Fen", 0]],
    }
    for name in ("h1", "h2")
]  # fmt: skip
MUSIQUE = [
    {
        "id": "2hop__1", "question": "Where?", "answer": "Jura", "answer_aliases": ["the Jura"], "answerable": True,
        "paragraphs": [
            {"idx": 0, "title": "Fen", "paragraph_text": "Fen is wet.", "is_supporting": False},
            {"idx": 1, "title": "Gull", "paragraph_text": "Gull was born.", "is_supporting": True},
        ],
        "question_decomposition": [{"id": 1, "question": "Gull?", "answer": "Ilse", "paragraph_support_idx": 1}],
    }
]  # fmt: skip
HUB_ROW = HOTPOT[0] | {
    "context": {"title": ["Oru", "Fen"], "sentences": [["The Oru is a river."], ["Fen is wet."]]},
    "supporting_facts": {"title": ["Oru"], "sent_id": [0]},
}


def _hub_table(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist([HUB_ROW]), folder / "hub.parquet")


def _vector_task(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name, rows in (("chunks", 6), ("questions", 2)):
        np.save(folder / f"{name}.npy", rng.normal(size=(rows, 4)).astype(np.float32))
    episodes = [
        {"question": 1, "chunks": [4, 0, 2], "gold": [2, 4]},
        {"question": 0, "range": [2, 6], "gold": [5], "id": "mine"},
    ]
    texts({"episodes.jsonl": episodes})(folder)


QUESTIONS = [
    Reader("documents", texts({"a.txt": PROSE, "b.md": PROSE, "sub/c.txt": "One. Two."}), read_files),
    Reader(
        "documents in UTF-16", texts({"a.txt": PROSE.encode("utf-16")}), lambda folder: read_files(folder, "utf-16")
    ),
    Reader("text .gz", texts({"a.txt.gz": PROSE}), lambda folder: read_text_file(folder / "a.txt.gz", "a text")),
    Reader("questions .jsonl", texts({"a.jsonl": EXAMPLES}), lambda folder: read_examples(folder / "a.jsonl")),
    Reader("questions .jsonl.gz", texts({"a.jsonl.gz": EXAMPLES}), lambda folder: read_examples(folder / "a.jsonl.gz")),
    Reader("bAbI", texts({"qa.txt": BABI}), lambda folder: read_babi(folder / "qa.txt")),
    Reader("novels", texts({"n.jsonl": NOVELS}), load_haystack),
    Reader("HotpotQA", texts({"a.json": HOTPOT}), lambda folder: read_hotpot(folder / "a.json")),
    Reader("HotpotQA in Parquet", _hub_table, lambda folder: read_hotpot(folder / "hub.parquet")),
    Reader("2WikiMultihopQA", texts({"a.jsonl.gz": HOTPOT}), lambda folder: read_2wiki(folder / "a.jsonl.gz")),
    Reader("MuSiQue", texts({"a.jsonl": MUSIQUE}), lambda folder: read_musique(folder / "a.jsonl")),
    Reader("task over vectors", _vector_task, read_vector_task),
]

HTML = "<html><body><nav>Home</nav><article><h1>Rye</h1><p>" + "Rye is a grass. " * 9 + "</p></article></body></html>"
CONVERTED = {
    "a.pdf": tiny_pdf([["Rye", "Rye is a grass that is grown as a gr-", "ain."], ["Oats."]], [("Rye", 0)]),
    "a.docx": tiny_docx(paragraph("Rye", "Heading1") + paragraph("Rye is a grass.") + picture()[0], picture()[1]),
    "a.epub": tiny_epub({"a.xhtml": HTML, "b.xhtml": HTML}),
    "a.html": HTML,
    "a.eml": f"Subject: Rye\nFrom: Ada <a@x.org>\nContent-Type: text/html; charset=utf-8\n\n{HTML}",
}
TABLES = {
    "a.csv": 'name,town\n"Ada, Oru",Belm\nFen,\n',
    "a.json": json.dumps([{"title": "Rye", "tags": ["grass", 1.5, None], "by": {"name": "Ada"}}]),
    "a.jsonl": '{"title": "Rye"}\n{"title": "Oats"}\n',
    "a.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": ["x = 1"], "outputs": [{"text": "1"}]}]}),
    "a.vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ada>Rye is\n\n00:02.000 --> 00:03.000\na grass.\n",
    "a.log": "Rye is a grass. Gräser.\n" * 9,
}
QUESTIONS += [
    Reader(f"document {name}", texts({name: content}), lambda folder, name=name: read_files(folder / name), cases=2_000)
    for name, content in TABLES.items()
]
if is_installed():  # a process for each case
    QUESTIONS += [
        Reader(name.removeprefix("a.").upper(), texts({name: content}), read_files, cases=200)
        for name, content in CONVERTED.items()
    ]

# Published sets of a study.


def _csv(rows: list[dict[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


SQUAD = {
    "title": "Oru",
    "paragraphs": [
        {
            "context": "The Oru is a river. It rises in Belm.",
            "qas": [
                {"id": "q1", "question": "Where?", "answers": [{"answer_start": 32, "text": "Belm"}]},
                {"id": "q2", "question": "What?", "answers": [{"answer_start": 13, "text": "river"}]},
            ],
        }
    ],
}
MULTIRC = [
    {
        "doc_id": 7,
        "sentences": ["Ada mills rye .", " Dr . Fen sails . ", "Rain falls ."],
        "questions": [{"question": "Who?", "evidence_sets": [[0]]}, {"question": "Who?", "evidence_sets": [[2, 1]]}],
    }
]
PAPERS = [
    {
        "id": "A00-1", "title": "Mills",
        "sections": [{"title": "Abstract", "number": None, "sentences": [["1", "Mills grind."], ["2", "Rye."]]}],
    }
]  # fmt: skip
ARTICLE = {"title": "Mill", "items": [{"text": "It grinds ."}, {"heading": "Rye", "level": 2}, {"text": "It is rye ."}]}
CITANCES = [{"ref": "A00-1", "citance": "Mills grind (Ada, 2000).", "ref_sids": ["2", "1"], "sids_valid": True}]
BEIR = texts(
    {
        "corpus.jsonl": [
            {"_id": "d1", "title": "Rye", "text": "Rye is a grass."},
            {"_id": 5, "title": "", "text": "Oats."},
        ],
        "queries.jsonl": [{"_id": "q1", "text": "What is rye?"}, {"_id": "q2", "text": "What else?"}],
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\t5\t2\nq2\td1\t0\n",
    }
)
CRANFIELD = {
    "cran.all.1400.xml": "<doc>\n<docno>1</docno>\n<title>lift .</title>\n<author>a</author>\n<text>lift of a wing "
    "< 5 &amp; more .</text>\n</doc>\n<doc>\n<docno>2</docno>\n<title>drag .</title>\n<text>slow .</text>\n</doc>\n",
    "cran.qry.xml": "<?xml version='1.0' encoding='utf-8'?>\n<xml>\n<top><num> 1</num><title>\nwhat lifts\n</title>"
    "</top>\n<top><num> 3</num><title>what slows .</title></top>\n</xml>\n",
    "cranqrel.trec.txt": "1 0 1 1\n2 0 2 3\n2 0 1 -1\n",
}
CHROMA = [
    {"question": "Where?", "references": '[{"content": "Rye", "start_index": 2, "end_index": 5}]', "corpus_id": "t"},
    {"question": "What?", "references": '[{"content": "grass", "start_index": 16, "end_index": 21}]', "corpus_id": "t"},
]
PAGE = {
    "url": "https://gov/a",
    "title": "Boat",
    "contents": ["<h1>Fees</h1>", "<p>You pay &amp; go.</p>", "<li>b</li>"],
}
CONDITIONAL = {
    "id": "dev-0", "url": "https://gov/a", "scenario": "I row.", "question": "What do I do?", "not_answerable": False,
    "answers": [["pay", []]], "evidences": ["<p>You pay &amp; go.</p>"],
}  # fmt: skip
FILING = {"doc_name": "ACME", "pages": ["ACME CO.\n", "Sales rose in the year.\nNet sales $ 5 $ 7\n", " "]}
FINANCE = [
    {
        "financebench_id": "fb_1", "doc_name": "ACME", "question": "What rose?", "answer": "Sales",
        "evidence": [{"evidence_text": "Net sales\n$\n5 $\n7", "evidence_page_num": 1, "doc_name": "ACME"}],
    }
]  # fmt: skip
OWN = [
    {"question": "What?", "evidence": [{"file": "a.md", "start": 7, "end": 22}, {"file": "b", "text": "Oats"}]},
    {"question": "What?", "evidence": ["It is hardy."], "answer": "hardy", "id": 3},
    {"question": "What?", "file": "b.txt", "spans": [[0, 4], {"start": 5, "end": 8}], "answers": ["x", 4]},
]


def _cranfield(folder: Path) -> None:
    for name, text in CRANFIELD.items():
        (folder / name).write_text(text)


def _read_own(folder: Path) -> object:
    return read_with_problems(folder / "corpus", folder / "q.jsonl", "own")


SETS = [
    Reader("SQuAD .jsonl", texts({"articles.jsonl": [SQUAD]}), lambda folder: read_squad(folder, "x")),
    Reader("SQuAD .json", texts({"dev.json": {"data": [SQUAD]}}), lambda folder: read_squad(folder / "dev.json", "x")),
    Reader("MultiRC", texts({"evidence.jsonl": MULTIRC}), lambda folder: read_multirc(folder, "x")),
    Reader(
        "CL-SciSumm", texts({"cited_papers.jsonl": PAPERS, "citances.jsonl": CITANCES}),
        lambda folder: read_scisumm(folder, "x"),
    ),
    Reader(
        "CL-SciSumm, sections", texts({"cited_papers.jsonl": PAPERS}),
        lambda folder: read_headed(f"scisumm:{folder}", strict=True),
    ),
    Reader(
        "WikiText-2, sections", texts({"articles.jsonl": [ARTICLE]}),
        lambda folder: read_headed(f"wikitext2:{folder}", strict=True),
    ),
    Reader(
        "WikiText-2, tokens", texts({"wiki.tokens": " = Mill = \n It grinds . \n = = Rye = = \n It is rye . \n"}),
        lambda folder: read_headed(f"wikitext2:{folder / 'wiki.tokens'}", "kept", strict=True),
    ),
    Reader(
        "Markdown, sections", texts({"t.md": "# Mill\n\nIt grinds.\n\n## Rye\n\nIt is rye.\n"}),
        lambda folder: read_headed(str(folder / "t.md"), "plain", strict=True),
    ),
    Reader("BEIR", BEIR, lambda folder: read_beir(folder, "x")),
    Reader("Cranfield", _cranfield, lambda folder: read_cranfield(folder, "x")),
    Reader("Chroma", texts({"questions.jsonl": CHROMA, "t.md": PROSE}), lambda folder: read_chroma(folder, "x")),
    Reader(
        "Chroma .csv", texts({"a.csv": _csv(CHROMA), "t.md": PROSE}), lambda folder: read_chroma(folder / "a.csv", "x")
    ),
    Reader(
        "ConditionalQA", texts({"documents.json": [PAGE], "dev.json": [CONDITIONAL]}),
        lambda folder: read_conditionalqa(folder, "x"),
    ),
    Reader(
        "FinanceBench", texts({"pages.jsonl": [FILING], "questions.jsonl": FINANCE}),
        lambda folder: read_financebench(folder, "x"),
    ),
    Reader(
        "own files and questions",
        texts({"corpus/a.md": PROSE, "corpus/b.txt": "Oats grow. No.", "q.jsonl": OWN}), _read_own,
    ),
]  # fmt: skip
