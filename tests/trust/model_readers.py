"""Readers of vectors, trees, corpora and models."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file
from support.decoders import decoder_config, random_decoder_params
from support.encoders import byte_bpe, mpnet_words, random_encoder, train_word_level, unigram
from support.gguf_files import decoder_fields, decoder_tensors, tokenizer_fields, write_gguf
from support.passages import count, documents
from support.talkers import CHATML, byte_tokenizer
from support.word_corpora import TEXTS, WordEncoder, make_tree
from trust.samples import PROSE, Reader, reseal, texts, value_of

from qrag_jax.chunking.tree.tree_files import from_json, load_trees, save_trees, to_json
from qrag_jax.files.manifest import MANIFEST
from qrag_jax.files.vector_files import read_vectors
from qrag_jax.index.corpus_folder import load_corpus, save_corpus
from qrag_jax.models.chat.render import render_chat
from qrag_jax.models.decoder.gguf_weights import GGUFTensors, gguf_decoder_config
from qrag_jax.models.decoder.hf_config import hf_decoder_config, read_decoder_config
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.encoder.hf_config import read_encoder_config
from qrag_jax.models.encoder.sentence_files import read_max_seq_length, read_prompts
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.models.gguf.file import read_gguf
from qrag_jax.models.weights.tensor_files import FolderTensors
from qrag_jax.search.corpus import embed_corpus, tree_corpus
from qrag_jax.types import InputError, Message

# Vectors, trees, corpora.

VECTORS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def _vector_table() -> pa.Table:
    return pa.table({"id": ["a", "b", None, "d"], "v": pa.array(VECTORS.tolist(), pa.list_(pa.float32()))})


def _vector_arrow(is_stream: bool) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        table = _vector_table()
        new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
        with new(folder / "v.arrow", table.schema) as out:
            out.write_table(table)

    return make


def _saved_dataset(folder: Path) -> None:
    import datasets

    datasets.Dataset(_vector_table()).save_to_disk(str(folder / "saved"))


def _corpus(folder: Path) -> None:
    found = [replace(one, metadata={"page": 3, "of": ((0, 1), [()])}) for one in documents(TEXTS[0])]
    save_corpus(embed_corpus(tree_corpus(found, [make_tree()], count), WordEncoder()), folder / "corpus")


_MARK = b"qrag_jax sha256 "


def _reseal_tree(folder: Path) -> None:
    path = folder / "t.arrow"
    stream = path.read_bytes().rpartition(_MARK)[0]
    path.write_bytes(stream + _MARK + hashlib.sha256(stream).digest())


TABLES = [
    Reader(".npy", lambda folder: np.save(folder / "v.npy", VECTORS), lambda folder: read_vectors(folder / "v.npy")),
    Reader(
        "vectors in Parquet", lambda folder: pq.write_table(_vector_table(), folder / "v.parquet"),
        lambda folder: read_vectors(folder / "v.parquet"),
    ),
    Reader("vectors in an Arrow file", _vector_arrow(False), lambda folder: read_vectors(folder / "v.arrow")),
    Reader("vectors in an Arrow stream", _vector_arrow(True), lambda folder: read_vectors(folder / "v.arrow")),
    Reader("saved dataset", _saved_dataset, lambda folder: read_vectors(folder / "saved"), cases=2_000),
    Reader(
        "trees in Parquet", lambda folder: save_trees([make_tree()] * 2, folder / "t.parquet"),
        lambda folder: load_trees(folder / "t.parquet"),
    ),
    Reader(
        "trees in Arrow", lambda folder: save_trees([make_tree()] * 2, folder / "t.arrow"),
        lambda folder: load_trees(folder / "t.arrow"), seal=_reseal_tree,
    ),
    Reader(
        "tree as JSON", lambda folder: (folder / "t.json").write_text(to_json(make_tree())),
        lambda folder: from_json((folder / "t.json").read_text("utf-8", "surrogateescape")),
    ),
    Reader("corpus on disk", _corpus, lambda folder: load_corpus(folder / "corpus"), seal=reseal, cases=2_000),
]  # fmt: skip

# Models.


def _tokenizer(make: Callable) -> Callable[[Path], None]:
    return lambda folder: texts({"tokenizer.json": json.loads(make([PROSE, "rye oats fen"]).to_json())})(folder)


def _encode(folder: Path) -> object:
    tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
    return tokenizer.encode([PROSE], 16), tokenizer.offsets("Rye \u00e9 it. [SEP]")


def _decode(folder: Path) -> object:
    tokenizer = DecoderTokenizer.from_folder(folder)
    ids = tokenizer.encode("Rye <|im_end|> \u00e9.", special=False)
    return tokenizer.decode(ids), tokenizer.encode("<|im_start|>x", special=True)


def _decoder_folder(folder: Path) -> None:
    tokenizer = byte_tokenizer()._tokenizer
    texts({"tokenizer.json": json.loads(tokenizer.to_str()), "generation/config.json": {}})(folder)
    named = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256]}))


def _safetensors(folder: Path) -> None:
    save_file(
        {"a": VECTORS, "b": np.arange(5, dtype=np.float16), "c": np.zeros((0, 2), np.float32)},
        folder / "model.safetensors",
    )


def _shards(folder: Path) -> None:
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for number, (name, part) in enumerate(parts.items()):
        save_file({name: VECTORS + number}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": parts}))


def _read_tensors(folder: Path) -> object:
    tensors = FolderTensors(folder)
    return {name: tensors[name] for name in tensors}


def _gguf(folder: Path) -> None:
    config = decoder_config("llama", num_layers=1, vocab_size=300)
    write_gguf(folder / "m.gguf", decoder_fields(config), decoder_tensors(config, random_decoder_params(config)))


def _read_gguf(folder: Path) -> object:
    file = read_gguf(folder / "m.gguf")
    config = gguf_decoder_config(file)
    tensors = GGUFTensors(file, config)
    return {name: tensors[name] for name in tensors}


def _gguf_blocks(folder: Path) -> None:
    """A tensor of each block format that the package makes."""
    rows = np.random.default_rng(0).normal(size=(2, 256)).astype(np.float32)
    kinds = {}
    for kind in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        gguf.quantize(rows, gguf.GGMLQuantizationType[kind])
        kinds[kind.lower()] = kind
    write_gguf(folder / "m.gguf", {"general.architecture": "llama", "x": [1, 2]}, dict.fromkeys(kinds, rows), kinds)


def _read_blocks(folder: Path) -> object:
    file = read_gguf(folder / "m.gguf")
    with np.errstate(all="ignore"):  # damaged scales; weights are looked at when they are put together
        return {name: file.read(name) for name in file.tensors}


def _gguf_metadata(folder: Path) -> None:
    texts({"metadata.json": tokenizer_fields() | {"tokenizer.chat_template": CHATML}})(folder)


def _as_gguf(value: object) -> object:
    """What a GGUF file can hold: numbers, texts, lists of texts, arrays of numbers."""
    if isinstance(value, list) and not all(isinstance(one, str) for one in value):
        if not all(isinstance(one, int | float) for one in value):
            raise InputError("no value of GGUF")
        return np.array(value)
    return value


def _read_gguf_tokenizer(folder: Path) -> object:
    metadata = value_of(folder / "metadata.json")
    if not isinstance(metadata, dict):
        raise InputError("no fields")
    metadata = {name: _as_gguf(value) for name, value in metadata.items()}
    tokenizer = DecoderTokenizer.from_gguf(metadata, "m.gguf")
    return tokenizer.encode("the <|im_end|> 123", special=True)


def _encoder(folder: Path) -> None:
    made = random_encoder("bert", [PROSE])
    save_encoder(folder, made.config, made.params, made.tokenizer, max_seq_length=32)


def _read_encoder_files(folder):
    return read_encoder_config(folder), read_max_seq_length(folder), read_prompts(folder, "x")


def _config_files(folder: Path) -> None:
    _encoder(folder)
    for path in folder.rglob("*"):
        if path.name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", MANIFEST):
            path.unlink()


def _chat(folder: Path) -> str:
    template = (folder / "t.jinja").read_text("utf-8", "surrogateescape")
    messages = [Message("system", "Be kind."), Message("user", "Hi <|im_end|>")]
    return render_chat(template, messages, ["<|im_end|>"], bos_token="<s>", eos_token="</s>")


TEMPLATE = (
    "{% set ns = namespace(n=0) %}{%- if messages[0]['role'] == 'system' -%}{{ messages[0].content|trim }}{%- endif %}"
    "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ '<|im_start|>' ~ m['role'] + '\\n' + m.content|upper }}"
    "{% if loop.last and not tools %}{{ eos_token }}{% endif %}{{ [1, 2]|join(',') }}{{ m|tojson }}{% endfor %}"
    "{% macro f(x) %}{{ x * 2 }}{% endmacro %}{{ f('a') }}{% if add_generation_prompt %}<a>{% endif %}"
)

MODELS = [
    Reader("tokenizer.json of words", _tokenizer(train_word_level), _encode),
    Reader("tokenizer.json of bytes", _tokenizer(byte_bpe), _encode, cases=5_000),
    Reader("tokenizer.json of pieces", _tokenizer(unigram), _encode),
    Reader("tokenizer.json of MPNet", _tokenizer(mpnet_words), _encode),
    Reader("tokenizer of a decoder", _decoder_folder, _decode, cases=5_000),
    Reader("safetensors", _safetensors, _read_tensors),
    Reader("safetensors in parts", _shards, _read_tensors),
    Reader("GGUF", _gguf, _read_gguf),
    Reader("GGUF blocks", _gguf_blocks, _read_blocks),
    Reader("GGUF tokenizer", _gguf_metadata, _read_gguf_tokenizer, cases=5_000),
    Reader(
        "config of an encoder", _config_files, _read_encoder_files, cases=2_000
    ),
    Reader(
        "config of a decoder", texts({"config.json": hf_decoder_config(decoder_config("qwen2"))}), read_decoder_config
    ),
    Reader("encoder folder", _encoder, load_encoder, cases=1_000),
    Reader("chat template", texts({"t.jinja": TEMPLATE}), _chat),
]  # fmt: skip
