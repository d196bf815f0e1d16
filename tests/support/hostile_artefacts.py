"""Every kind of artefact that `qrag` reads: made small, changed hostile and well-formed, read as `qrag` reads it."""

import functools
import hashlib
import json
import shutil
import sqlite3
import struct
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qrag_jax.checkpoint import load_checkpoint, save_checkpoint
from qrag_jax.chunking.tree.tree_files import load_trees, save_trees
from qrag_jax.data.corpora.file_questions import read_with_problems
from qrag_jax.data.questions.examples import read_examples
from qrag_jax.data.questions.multihop import READERS
from qrag_jax.eval.retrieval.calibration import stored_threshold
from qrag_jax.eval.retrieval.records import read_records, write_records
from qrag_jax.eval.study.cells.cell_files import CellStore, claim_folder, sealed
from qrag_jax.eval.study.records import CellResult, FoundChunk, FoundChunks
from qrag_jax.files.manifest import MANIFEST, json_text, write_manifest
from qrag_jax.hub import Place, pull_run
from qrag_jax.index.corpus_folder import load_corpus, save_corpus
from qrag_jax.llm.journal.journal import JournaledGenerator
from qrag_jax.llm.journal.journal_file import Journal
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.models.chat.render import render_chat
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.decoder.weights import LoadedDecoder, load_decoder, save_decoder
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.qrag.retriever import load_retriever
from qrag_jax.search.corpus import embed_corpus, tree_corpus
from qrag_jax.types import Cost, Document, Message, Sampling
from support.answers import make_record
from support.decoders import decoder_config, random_decoder_params
from support.encoders import random_encoder
from support.gguf_files import CHAT, TOKENS, decoder_fields, decoder_tensors, tokenizer_fields, write_gguf
from support.hostile_values import Canary, hostile_json, hostile_texts, hostile_value
from support.passages import count
from support.runs import save_run
from support.study import make_config
from support.word_corpora import TEXTS, WordEncoder, make_tree

WORDS = ["mary went to the kitchen", "john took the milk"]


@dataclass(frozen=True)
class Kind:
    """A kind of artefact: made in a folder; changed there, hostile and well-formed; read."""

    make: Callable[[Path], object]
    change: Callable[[Random, Canary, Path], object]
    read: Callable[[Path], object]


def resign(folder: Path) -> None:
    """A manifest that fits, as whoever can write a folder can write one."""
    (folder / MANIFEST).unlink(missing_ok=True)
    write_manifest(folder)


def change_json(rng: Random, canary: Canary, path: Path) -> None:
    path.write_text(json.dumps(hostile_json(rng, canary, json.loads(path.read_text()))))


# --- checkpoints and runs


def make_checkpoint(folder: Path) -> None:
    tree = {"kernel": np.ones((2, 3), np.float32), "half": jnp.ones(3, jnp.bfloat16), "none": np.zeros((0, 4))}
    arrays = {"params": {"enc": tree}, "key": jax.random.key(0), "step": 7}
    about = {"task": "worlds", "dev": {"threshold": 0.5, "fitted_on": ["aa"]}}
    save_checkpoint(folder, 1, arrays, {"seed": 1}, {"tokenizer.json": "{}"}, about)


def change_metadata(rng: Random, canary: Canary, folder: Path) -> None:
    change_json(rng, canary, folder / "step_1" / "metadata.json")
    resign(folder / "step_1")


def read_checkpoint(folder: Path) -> object:
    stored_threshold(load_checkpoint(folder, groups=()).metadata)
    return load_checkpoint(folder)


def change_manifest(rng: Random, canary: Canary, folder: Path) -> None:
    path = folder / "step_1" / MANIFEST
    path.write_bytes(hostile_manifest(rng, canary, path.read_bytes()))


def hostile_manifest(rng: Random, canary: Canary, content: bytes) -> bytes:
    """Of another list of files, with the hash of that list."""
    files = hostile_json(rng, canary, json.loads(content)["files"])
    if rng.random() < 0.3 and isinstance(files, dict):
        secret = canary.file.read_bytes()
        entry = {"bytes": len(secret), "sha256": hashlib.sha256(secret).hexdigest()}
        files[rng.choice([str(canary.file), "../" * 40 + str(canary.file).lstrip("/")])] = entry
    return json_text({"files": files, "sha256": hashlib.sha256(json_text(files, True)).hexdigest()}, True)


def pull_folder(folder: Path) -> object:
    """Pulled, then read."""
    out = folder.parent / "pulled"
    try:
        pull_run(Place(folder=folder), out)
        return load_checkpoint(out, groups=())
    finally:
        shutil.rmtree(out, ignore_errors=True)


def change_run(rng: Random, canary: Canary, folder: Path) -> None:
    """Its config, its metadata, or a small file of its encoder."""
    step = folder / "step_0"
    config = step / "config.yaml"
    if rng.random() < 0.6:
        part = {name: RUN_CONFIG[name] for name in (("model", "env") if rng.random() < 0.8 else RUN_CONFIG)}
        changed = hostile_json(rng, canary, part)
        values = RUN_CONFIG | changed if isinstance(changed, dict) else changed
        config.write_text(json.dumps(values))  # JSON is YAML
        if rng.random() < 0.1:
            config.write_text(f"{config.read_text()[:-1]}, x: {rng.choice(hostile_texts(canary))}}}", errors="replace")
    else:
        change_json(rng, canary, rng.choice([step / "metadata.json", *(step / "files" / "encoder").glob("*.json")]))
    resign(step)


RUN_CONFIG: dict[str, Any] = {}


def make_run(folder: Path) -> None:
    save_run(folder, WORDS)
    RUN_CONFIG.update(load_checkpoint(folder, groups=()).config)


# --- models


def make_encoder(folder: Path) -> None:
    sizes = {"num_layers": 1, "hidden_size": 4, "num_heads": 2, "intermediate_size": 6, "max_positions": 8}
    made = random_encoder("bert", WORDS, **sizes)
    save_encoder(folder, made.config, made.params, made.tokenizer)


def change_model(rng: Random, canary: Canary, folder: Path) -> None:
    """A JSON file, or the header of the weights."""
    path = rng.choice([*sorted(folder.rglob("*.json")), folder / "model.safetensors"])
    if path.suffix == ".json":
        return change_json(rng, canary, path)
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.dumps(hostile_json(rng, canary, json.loads(content[8 : 8 + size]))).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
    return None


def read_encoder(folder: Path) -> object:
    return load_encoder(folder).tokenizer.encode(WORDS, 8)


DECODER = decoder_config("llama", vocab_size=len(TOKENS) + 3, hidden_size=8, intermediate_size=8, num_layers=1)


def make_decoder(folder: Path) -> None:
    tokenizer = DecoderTokenizer.from_gguf(tokenizer_fields() | {"tokenizer.chat_template": CHAT})
    save_decoder(folder, LoadedDecoder(DECODER, random_decoder_params(DECODER), tokenizer, ""))


def read_decoder(path: Path) -> object:
    """The prompt of a talk, as `qrag ask` makes it."""
    loaded = load_decoder(path).tokenizer
    if loaded.chat_template is None:
        return None
    return render_chat(loaded.chat_template, [Message("user", "Where?")], loaded.special_tokens)


@functools.cache
def decoder_arrays() -> dict[str, np.ndarray]:
    return decoder_tensors(DECODER, random_decoder_params(DECODER))


def make_gguf(folder: Path) -> None:
    folder.mkdir()
    write_gguf(folder / "model.gguf", decoder_fields(DECODER), decoder_arrays())


def change_gguf(rng: Random, canary: Canary, folder: Path) -> None:
    """A field or the name of a tensor; what GGUF cannot hold is drawn again."""
    fields, tensors = decoder_fields(DECODER), decoder_arrays()
    texts = [text for text in hostile_texts(canary) if "\ud800" not in text]
    while True:
        if rng.random() < 0.1:
            name = rng.choice(list(tensors))
            changed, named = fields, {rng.choice(texts) if one == name else one: x for one, x in tensors.items()}
        else:
            changed, named = fields | {rng.choice(list(fields)): hostile_value(rng, canary, texts)}, tensors
        try:
            write_gguf(folder / "model.gguf", changed, named)
            return
        except (TypeError, ValueError, AttributeError, struct.error, OverflowError):
            continue


def hostile_template(rng: Random, canary: Canary) -> str:
    """Expressions that climb from what a template sees to what it must not."""
    mark, file = str(canary.mark), str(canary.file)
    roots = ["messages", "messages[0]", "bos_token", "raise_exception", "loop", "namespace()", "cycler", "lipsum",
             "dict", "range", "joiner", "strftime_now", "tools", "self", "caller", "''", "[]", "{}", "1", "none",
             "messages[0].content", "''.join", "[].append", "dict().items", "strftime_now('%Y')"]  # fmt: skip
    steps = [".__class__", "['__class__']", "|attr('__class__')", ".__init__", ".__globals__", "['__globals__']",
             ".__builtins__", "['__import__']('os')", ".os", ".environ", ".system", ".mro()", ".__mro__[1]",
             ".__subclasses__()", "[1]", f"('touch {mark}')", f"('{file}')", ".read()", ".popen", ".format(messages)",
             ".gi_frame", ".f_globals", ".__code__", ".__func__", ".__self__", "|map(attribute='__class__')", "|list",
             "|join", "|string", "|tojson", "|first", "()", ".append(1)", ".update({})", ".pop()", ".clear()",
             "|selectattr('__class__')", "|groupby('__class__')", "|sum(attribute='__class__')", "|xmlattr", "|pprint",
             "|format(messages)", "|replace('a', messages)", ".__getattribute__('__class__')", ".__reduce_ex__(2)",
             "['__cla' ~ 'ss__']", "|attr('\\x5f\\x5fclass\\x5f\\x5f')",
             ".format_map(messages[0])", "|batch(2)"]  # fmt: skip
    expression = rng.choice([*roots, "'{0.__class__.__init__.__globals__}'", "'%s'", f"'{file}'"])
    expression += "".join(rng.choice(steps) for _ in range(rng.randint(1, 6)))
    return rng.choice([
        "{{ X }}", "{% set x = X %}{{ x }}", "{% for x in X %}{{ x }}{% endfor %}", "{% if X %}a{% endif %}",
        "{% macro m() %}{{ X }}{% endmacro %}{{ m() }}", "{% include X %}", "{% import X as x %}{{ x }}",
        "{% extends X %}", "{% from X import x %}", "{% set ns = namespace(a=X) %}{{ ns.a }}{% set ns.a = X %}",
        "{% filter upper %}{{ X }}{% endfilter %}", "{% call(x) X %}{% endcall %}", "{{ raise_exception(X) }}",
        "{% do X %}", "{{ X }}{% generation %}{{ X }}{% endgeneration %}",
        "{{ (X)|safe }}", "{% autoescape X %}{% endautoescape %}",
        "{{ messages|map('attr', '__class__')|list }}{{ X }}", "{% trans %}{{ X }}{% endtrans %}", "{{ [X][0] ~ X }}",
    ]).replace("X", expression)  # fmt: skip


def change_template(rng: Random, canary: Canary, folder: Path) -> None:
    (folder / "template").write_text(hostile_template(rng, canary))


def read_template(folder: Path) -> object:
    found = render_chat((folder / "template").read_text(), [Message("user", "Where?")], ["<|im_end|>"], bos_token="<s>")
    for word in ("<module", "<class", "<function", "built-in", "0x"):  # what a template must not reach
        assert word not in found, found[:300]
    return found


# --- trees, corpora, journals, studies


def change_trees(rng: Random, canary: Canary, folder: Path) -> None:
    path, texts = folder / "trees.parquet", [one for one in hostile_texts(canary) if "\ud800" not in one]
    table = pq.read_table(path).to_pydict()
    name = rng.choice(list(table))
    row = rng.randrange(len(table[name]))
    if name == "document_id":
        table[name] = [rng.choice(texts)] * len(table[name]) if rng.random() < 0.5 else table[name]
        table[name][row] = rng.choice(texts)
    elif name != "leaf":
        table[name][row] = rng.choice([-1, 0, 1, 5, 2**31, 2**62, -(2**62), rng.randrange(20)])
    else:
        table[name][row] = not table[name][row]
    if rng.random() < 0.2:
        table[name] = rng.choice([texts[: len(table[name])], [None] * len(table[name]), [[1]] * len(table[name])])
    if rng.random() < 0.1:
        table[rng.choice(texts)] = table.pop(name)
    pq.write_table(pa.table(table), path)


def make_corpus(folder: Path) -> None:
    documents = [Document("a.txt", TEXTS[0], {"path": "a.txt", "page": 3})]
    save_corpus(embed_corpus(tree_corpus(documents, [make_tree()], count), WordEncoder()), folder)


def change_corpus(rng: Random, canary: Canary, folder: Path) -> None:
    if rng.random() < 0.5:
        change_json(rng, canary, folder / "corpus.json")
    else:
        path = folder / rng.choice(["documents.parquet", "nodes.parquet"])
        table = pq.read_table(path)
        values, name = table.to_pydict(), rng.choice(table.column_names)
        if name == "metadata":
            values[name][0] = json.dumps(hostile_json(rng, canary, json.loads(values[name][0])))
        elif name in ("id", "text"):
            values[name][0] = rng.choice(hostile_texts(canary)).encode("utf-8", "surrogatepass")
        else:
            number = rng.choice([-1, 0, 1, 2**31, 2**62, -(2**62)])
            values[name][0] = [number] * rng.randrange(4) if name == "spans" else number
        pq.write_table(pa.table(values, schema=table.schema), path)
    resign(folder)


def ask_journal(folder: Path) -> object:
    prompts = [[Message("user", text)] for text in ("one", "two", "three")]
    model = ScriptedGenerator(lambda prompt: prompt[-1].content.upper())
    answers = JournaledGenerator(model, Journal(folder / "journal")).generate(prompts, sampling=Sampling())
    return "".join(answer.text for answer in answers)


def change_journal(rng: Random, canary: Canary, folder: Path) -> None:
    """An answer with its digest, a key, a claim, or what says that it is a journal."""
    with closing(sqlite3.connect(folder / "journal", isolation_level=None)) as connection:
        key, answer = rng.choice(connection.execute("SELECT key, answer FROM answers").fetchall())
        text = rng.choice([one for one in hostile_texts(canary) if "\ud800" not in one])
        draw = rng.random()
        if draw < 0.75:
            changed = json.dumps(hostile_json(rng, canary, json.loads(answer)))
            digest = hashlib.sha256(f"{key}\n{changed}".encode()).hexdigest()
            connection.execute("UPDATE answers SET answer = ?, sha256 = ? WHERE key = ?", (changed, digest, key))
        elif draw < 0.85:
            connection.execute("UPDATE answers SET key = ? WHERE key = ?", (text, key))
        elif draw < 0.95:
            connection.execute("INSERT INTO claims VALUES (?, ?)", (key, text))
        else:
            connection.execute(f"PRAGMA user_version = {rng.choice([0, 3, -1, 2**31 - 1])}")


CELL = CellResult(
    "facts", "fixed", 1, "dev", 2, 3, 5 / 3, 4, 1 / 3, Cost({"chunk": 0.5}, 12, 1e15, 64),
    (FoundChunks("q1", (FoundChunk("c0", "a.txt", ((0, 5), (7, 9)), 3, 0.3),)), FoundChunks("q2", ())),
)  # fmt: skip
ORIGIN = {"encoder": "one", "ks": [1, 3], "seed": 0}


def make_study(folder: Path) -> None:
    claim_folder(folder, make_config())
    CellStore(folder).write(CELL, ORIGIN)


def change_study(rng: Random, canary: Canary, folder: Path) -> None:
    if rng.random() < 0.2:
        path = folder / "config.yaml"
        path.write_text(json.dumps(hostile_json(rng, canary, {"tasks": {"a": {"path": "x"}}, "seed": 0})))
    else:
        body = hostile_json(rng, canary, {"made_of": ORIGIN, "result": asdict(CELL)})
        path = CellStore(folder).path("facts", "fixed", 1, "dev")
        content = json.dumps(body).encode() + b"\n"
        path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_study(folder: Path) -> object:
    with warnings.catch_warnings(record=True, action="always") as caught:
        found = CellStore(folder).read("facts", "fixed", 1, "dev", ORIGIN)
    if found is not None:  # what is stored again must be what a cell holds
        sealed(asdict(found))
        sum(hit.score + hit.num_tokens for one in found.found for hit in one.hits)
    claim_folder(folder, make_config())
    return " ".join(str(warning.message) for warning in caught)


# --- questions and records

EXAMPLE = {"id": "a", "question": "Where?", "chunks": ["one", "two"], "gold": [0], "answer": "x"}
HOTPOT = {"_id": "a", "question": "Where?", "answer": "x", "context": [["T", ["one", "two"]], ["U", ["three"]]],
          "supporting_facts": [["T", 0]], "type": "bridge", "level": "hard"}  # fmt: skip
MUSIQUE = {"id": "a", "question": "Where?", "answer": "x", "answer_aliases": ["y"], "answerable": True, "paragraphs": [
    {"idx": number, "title": "T", "paragraph_text": "one", "is_supporting": number == 0} for number in range(2)
]}  # fmt: skip
QUESTION = {"id": "a", "question": "Where?", "answer": "x", "evidence": [{"file": "a.txt", "start": 0, "end": 3}]}


def make_questions(folder: Path) -> None:
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "a.txt").write_text("one two three.")
    for name, row in {"example": EXAMPLE, "hotpot": HOTPOT, "musique": MUSIQUE, "question": QUESTION}.items():
        (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    write_records(folder / "record.jsonl", [make_record(0, [0, 1])])


def change_questions(rng: Random, canary: Canary, folder: Path) -> None:
    change_json(rng, canary, rng.choice(sorted(folder.glob("*.jsonl"))))


def read_questions(folder: Path) -> object:
    """The one that was changed last."""
    path = max(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    if path.stem == "question":
        return " ".join(read_with_problems(folder / "docs", path, "mine")[1])
    if path.stem in READERS:
        return READERS[path.stem](path) and ""
    return (read_records if path.stem == "record" else read_examples)(path) and ""


def make_template(folder: Path) -> None:
    folder.mkdir()
    (folder / "template").write_text(CHAT)


def make_journal(folder: Path) -> None:
    folder.mkdir()
    ask_journal(folder)


def make_trees(folder: Path) -> None:
    save_trees([make_tree(), replace(make_tree(), document_id="b.txt")], folder / "trees.parquet")


KINDS = {
    "checkpoint metadata": Kind(make_checkpoint, change_metadata, read_checkpoint),
    "checkpoint manifest": Kind(make_checkpoint, change_manifest, pull_folder),
    "run": Kind(make_run, change_run, load_retriever),
    "encoder folder": Kind(make_encoder, change_model, read_encoder),
    "decoder folder": Kind(make_decoder, change_model, read_decoder),
    "GGUF": Kind(make_gguf, change_gguf, lambda folder: read_decoder(folder / "model.gguf")),
    "chat template": Kind(make_template, change_template, read_template),
    "tree": Kind(make_trees, change_trees, lambda folder: load_trees(folder / "trees.parquet")),
    "corpus": Kind(make_corpus, change_corpus, load_corpus),
    "journal": Kind(make_journal, change_journal, ask_journal),
    "study folder": Kind(make_study, change_study, read_study),
    "questions and records": Kind(make_questions, change_questions, read_questions),
}


def hostile_repository(rng: Random, canary: Canary, files: dict[str, bytes]) -> dict[str, bytes]:
    """Names of files, or what the manifest lists."""
    texts = [text for text in hostile_texts(canary) if text and "\ud800" not in text]
    files = dict(files)
    draw = rng.random()
    if draw < 0.4:
        name = f"step_1/{MANIFEST}"
        return files | {name: hostile_manifest(rng, canary, files[name])}
    if draw < 0.6:
        return files | {f"{rng.choice(['', 'step_1/', 'step_1/files/'])}{rng.choice(texts)}": b"x"}
    if draw < 0.8:
        files[rng.choice(texts)] = files.pop(rng.choice(list(files)))
        return files
    prefix = rng.choice(["step_01/", "step_1/../", f"step_{10**25}/", "/step_1/", "step_1//", "step_-1/", "../step_1/"])
    return {name.replace("step_1/", prefix, 1): content for name, content in files.items()}
