"""Rerankers that are sequence classifiers with one output: an encoder reads question and passage together.

    s(q, p) = w . h + b,    h = head(vector of the row [CLS] q [SEP] p [SEP])

The head of BERT is its pooler `tanh(W x + b)` of the first token; that of RoBERTa, XLM-RoBERTa and MPNet the same under
other names; that of ModernBERT `LN(gelu(W x))` of the first token or of the mean.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from qrag_jax.chunking.text.spans import readable
from qrag_jax.files.whole_file import read_json, write_json, write_whole
from qrag_jax.models.encoder.config import EncoderConfig, Pooling
from qrag_jax.models.encoder.embedder import BUCKETS, default_tokens_per_block, plan_blocks
from qrag_jax.models.encoder.hf_config import hf_config, read_encoder_config
from qrag_jax.models.encoder.sentence_files import read_max_seq_length
from qrag_jax.models.encoder.sources import find_encoder
from qrag_jax.models.encoder.table import (
    PREFIXES,
    TensorRow,
    dense_rows,
    params_from_rows,
    params_from_tensors,
    tensors_from_params,
    tensors_from_rows,
    without_prefix,
)
from qrag_jax.models.encoder.text_encoder import encode_tokens, pool, valid_tokens
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.encoder.weights import LoadedEncoder, refuse_projection, tokenizer_config
from qrag_jax.models.weights.param_tree import Params, nest
from qrag_jax.models.weights.tensor_files import FolderTensors, save_tensors
from qrag_jax.models.weights.tokenizer_faults import check_vocab
from qrag_jax.types import InputError, TextCounts, UsageError

_HEAD_SCALE = 0.02
_LONGEST_PAIR = 512
_ENDLESS = 1_000_000  # transformers writes 10^30 where it knows no window
_NOTHING = re.compile("(?!)")
# Names of the tensors of heads, before and after the activation, by family.
_HEADS: Mapping[str, tuple[str, str]] = {
    "bert": ("pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
    "mpnet": ("classifier.dense", "classifier.out_proj"),
    "modernbert": ("head.dense", "classifier"),
}


@dataclass(frozen=True)
class Classifier:
    """A classifier with one output.

    Attributes:
        config: of its encoder; `pooling` says which vector of a row the head reads.
        params: `encoder` and `head`, nested dicts of float32 arrays.
        window: most tokens of question and passage together, special tokens counted.
    """

    config: EncoderConfig
    params: dict[str, Any]
    tokenizer: TextTokenizer
    window: int


def has_classifier(source: str | Path) -> bool:
    """True if a folder or hub id has a sequence classifier, by the `architectures` of its `config.json`."""
    folder = find_encoder(source)
    path = folder / "config.json"
    names = read_json(path).get("architectures") if path.is_file() else None
    return isinstance(names, list) and any(str(name).endswith("ForSequenceClassification") for name in names)


def load_classifier(source: str | Path, revision: str | None = None) -> Classifier:
    """Loads a classifier from a folder or a hub id.

    Raises:
        UsageError: there is no such folder, or heads of its family are not read.
        InputError: it is no classifier with one output, or is damaged; the message names what is missing.
    """
    folder = find_encoder(source, revision)
    config = read_encoder_config(folder)
    rows = head_table(config)
    config = replace(config, pooling=_read_pooling(config, folder), normalize=False)
    held = FolderTensors(folder)
    where = str(held.files[0] if len(held.files) == 1 else folder)
    tensors = without_prefix(config, dict(held), where)
    output = tensors.get(f"{_HEADS[config.family][1]}.weight")
    if output is None:
        raise InputError(
            "an encoder without a classifier, which cannot rerank; give a sequence classifier with one output",
            file=folder,
        )
    if output.shape[:1] != (1,):
        raise InputError(
            f"a classifier with {output.shape[0] if output.ndim else 'no'} outputs; a reranker has one", file=folder
        )
    stems = ("classifier.", "head.", *(row.name for row in rows))
    head = {name: tensors.pop(name) for name in list(tensors) if name.startswith(stems)}
    tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
    check_vocab(tokenizer.vocab_size, config.vocab_size, folder / "tokenizer.json")
    params = {
        "encoder": params_from_tensors(config, tensors, where),
        "head": params_from_rows(rows, head, _NOTHING, where),
    }
    return Classifier(config, jax.device_put(params), tokenizer, min(_read_window(folder), config.max_positions))


def _read_pooling(config: EncoderConfig, folder: Path) -> Pooling:
    """The vector that the head reads."""
    if config.family != "modernbert":
        return "cls"
    values = read_json(folder / "config.json")
    if values.get("classifier_activation", "gelu") != "gelu":
        raise InputError(
            f"classifier_activation is {values['classifier_activation']!r}, only 'gelu' is read",
            file=folder / "config.json",
        )
    pooling = values.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise InputError(f"classifier_pooling is {pooling!r}, choose cls or mean", file=folder / "config.json")
    return pooling


def _read_window(folder: Path) -> int:
    """Most tokens of a pair that the folder asks for; a large number where it names none."""
    path = folder / "tokenizer_config.json"
    named = read_json(path).get("model_max_length") if path.is_file() else None
    longest = int(named) if isinstance(named, int | float) and 3 < named < _ENDLESS else _ENDLESS
    return read_max_seq_length(folder) or longest


def head_table(config: EncoderConfig) -> list[TensorRow]:
    """The tensors of the head of a classifier with one output; a UsageError for a family whose heads are not read."""
    if config.family not in _HEADS:
        raise UsageError(f"a reranker of family {config.family} is not read; those of {', '.join(_HEADS)} are")
    inner, output = _HEADS[config.family]
    d, is_modern = config.hidden_size, config.family == "modernbert"
    rows = dense_rows(inner, ("dense",), d, d, bias=not is_modern)
    if is_modern:
        rows.append(TensorRow("head.norm.weight", ("norm", "scale"), (d,)))
    return [*rows, *dense_rows(output, ("output",), d, 1)]


def score_rows(
    config: EncoderConfig,
    params: Params,
    tokens: Int[Array, "n L"],
    lengths: Int[Array, " n"],
    types: Int[Array, "n L"],
) -> Float[Array, " n"]:
    """The output of the classifier for every row, float32; pure and differentiable in `params`."""
    hidden = encode_tokens(config, params["encoder"], tokens, lengths, types=types)
    x = pool(hidden, valid_tokens(lengths, tokens.shape[1])[:, None], config.pooling)[:, 0]
    head = params["head"]
    x = x @ head["dense"]["kernel"]
    if config.family == "modernbert":
        x = jax.nn.gelu(x, approximate=False)
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + config.layer_norm_eps)
        x = x * head["norm"]["scale"]
    else:
        x = jnp.tanh(x + head["dense"]["bias"])
    return (x @ head["output"]["kernel"] + head["output"]["bias"])[:, 0]


_score = jax.jit(score_rows, static_argnums=0)


def new_classifier(loaded: LoadedEncoder, key: PRNGKeyArray) -> Classifier:
    """A classifier around an encoder, with a new head; the key is consumed.

    BERT's head begins with the pooler of the encoder where there is one; all else is normal with deviation 0.02.

    Raises:
        UsageError: heads of the family are not read.
    """
    config = replace(loaded.config, pooling="cls", normalize=False, dim=0)
    refuse_projection(config, "of a reranker", "training")
    rows = head_table(config)
    head: dict[tuple[str, ...], Any] = {}
    for own, row in zip(jax.random.split(key, len(rows)), rows, strict=True):
        known = loaded.pooler.get(row.name)
        if known is not None:
            head[row.path] = jnp.asarray(known.T if row.transposed else known)
        elif row.path[-1] == "kernel":
            head[row.path] = _HEAD_SCALE * jax.random.normal(own, row.our_shape)
        else:
            head[row.path] = jnp.full(row.our_shape, float(row.path[-1] == "scale"))
    params = {"encoder": loaded.params, "head": nest(head)}
    window = min(loaded.config.max_positions, _LONGEST_PAIR)
    return Classifier(config, params, loaded.tokenizer, window)


def save_classifier(folder: Path, classifier: Classifier) -> None:
    """Writes a folder that `load_classifier`, transformers and sentence-transformers' `CrossEncoder` load.

    Args:
        folder: made when it is not there; files of the same names are replaced.
    """
    config, tokenizer = classifier.config, classifier.tokenizer
    folder.mkdir(parents=True, exist_ok=True)
    prefix = PREFIXES[config.family]
    own = tensors_from_params(config, classifier.params["encoder"])
    head = tensors_from_rows(head_table(config), classifier.params["head"], "reranker")
    in_encoder = lambda name: name.startswith("pooler.")  # noqa: E731  (BERT's)
    named = {f"{prefix}{name}": tensor for name, tensor in own.items()}
    named |= {f"{prefix}{name}" if in_encoder(name) else name: tensor for name, tensor in head.items()}
    save_tensors(folder, named)
    write_whole(folder / "tokenizer.json", tokenizer.to_json())
    values = hf_config(config, tokenizer)
    stem = values["architectures"][0].removesuffix("Model")
    values |= {"architectures": [f"{stem}ForSequenceClassification"], "id2label": {"0": "LABEL_0"},
               "label2id": {"LABEL_0": 0}, "num_labels": 1}  # fmt: skip
    values |= {"classifier_pooling": config.pooling} if config.family == "modernbert" else {}
    write_json(folder / "config.json", values)
    window = {"model_max_length": classifier.window}
    write_json(folder / "tokenizer_config.json", tokenizer_config(config, tokenizer) | window)


class PairScorer:
    """Scores passages for a question by a classifier. Satisfies `types.Reranker`.

    Attributes:
        name: what was loaded.
        weight: None: passages are ordered by these scores alone.
        counts: rows and tokens read so far, with passages that were cut.
        num_parameters: numbers of all tensors.
    """

    weight = None

    def __init__(self, classifier: Classifier, name: str = "classifier") -> None:
        """Takes a loaded classifier."""
        self.name, self.counts = name, TextCounts()
        self._own, self.num_parameters = classifier, sum(leaf.size for leaf in jax.tree.leaves(classifier.params))
        self._lengths = (*(size for size in BUCKETS if size < classifier.window), classifier.window)

    def __call__(
        self, question: str, passages: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """Scores, float64 [n]. The end of a passage that does not fit the window is cut and counted.

        Args:
            progress: called with (tokens done, tokens in all) after each block.

        Raises:
            InputError: the question leaves no room for a passage.
        """
        own = self._own
        table, types = own.tokenizer.pairs(readable(question), [readable(one) for one in passages], own.window)
        self.counts = self.counts.plus(*table.counted)
        scores = np.zeros(len(passages))
        done, total = 0, int(table.lengths.sum())
        for rows, length, num_rows in plan_blocks(table.lengths, self._lengths, default_tokens_per_block()):
            tokens, kinds = (_padded(each, rows, num_rows, length) for each in (table.tokens, types))
            lengths = np.zeros(num_rows, np.int32)
            lengths[: len(rows)] = table.lengths[rows]
            found = np.asarray(_score(own.config, own.params, tokens, lengths, kinds))
            scores[rows] = found[: len(rows)]
            done += int(table.lengths[rows].sum())
            if progress is not None:
                progress(done, total)
        return scores


def _padded(table: np.ndarray, rows: np.ndarray, num_rows: int, length: int) -> np.ndarray:
    block = np.zeros((num_rows, length), np.int32)
    width = min(length, table.shape[1])
    block[: len(rows), :width] = table[rows, :width]
    return block
