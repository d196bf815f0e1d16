"""A multi-step retriever as one object: encoder, towers and parameters. It is new, loaded from a run, or saved into
one."""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from qrag_jax.config import config_from_dict
from qrag_jax.files.manifest import ADVICE
from qrag_jax.files.mapped import mapped_array
from qrag_jax.models.encoder.config import NO_PROMPTS, Pooling
from qrag_jax.models.encoder.embedder import default_tokens_per_block, make_embedder
from qrag_jax.models.encoder.hf_config import read_encoder_config
from qrag_jax.models.encoder.text_encoder import Compute, EncoderConfig, init_encoder
from qrag_jax.models.encoder.tokenizer import TextTokenizer, train_word_level
from qrag_jax.models.encoder.weights import LoadedEncoder, load_encoder, refuse_projection, save_encoder
from qrag_jax.models.towers.latent import LatentConfig, make_latent_network
from qrag_jax.models.towers.prior import make_prior_network
from qrag_jax.models.towers.q_network import Network, PyTree, TokenRows, VectorRows
from qrag_jax.models.towers.text import make_text_network
from qrag_jax.qrag.beam import SearchFunctions, make_search_functions
from qrag_jax.qrag.chunk_encoder import ChunkEncoder
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.heads import fresh_heads, fresh_links
from qrag_jax.qrag.long_contexts import BLOCK, BlockFunctions, make_block_functions
from qrag_jax.types import Hit, InputError, Retriever, UsageError, check_fields

Progress = Callable[[int, int], None]
Texts = Sequence[str] | np.ndarray  # texts, or their vectors float32 [n, dim]
Rows = TokenRows | VectorRows
Kind = Literal["chunk", "question"]
_DEAD_COMPONENT = 1e-6  # MiniLM has three components that its last LayerNorm multiplies by zero


@dataclass(frozen=True)
class EncoderSpec:
    """Where the text encoder comes from and how much text it reads.

    Attributes:
        source: `minilm` (the embedded package), a local folder, a hub id, `scratch` (a small encoder with a
            vocabulary of the training texts; latent towers keep its random weights), or `vectors` (no encoder: the
            data are vectors).
        revision: commit or tag of a hub id.
        num_layers: number of first layers to keep; null keeps all. The depth of a `scratch` encoder.
        pooling: `mean`, `cls` or `last`; null takes the setting of the encoder's folder.
        normalize: divide pooled vectors by their L2 norm. The towers of Q-RAG do not.
        window: most tokens of a chunk, with [CLS] and [SEP]; cut chunks are counted and reported.
        question_window: most tokens of a question; training and evaluation cut and count a longer one; a search of
            files refuses it.
        hidden_size: width of a `scratch` encoder.
        num_heads: attention heads of a `scratch` encoder.
    """

    source: str = "minilm"
    revision: str | None = None
    num_layers: int | None = 2
    pooling: Pooling | None = None
    normalize: bool = False
    window: int = 64
    question_window: int = 64
    hidden_size: int = 64
    num_heads: int = 4

    def __post_init__(self) -> None:
        windows = {"window": 3, "question_window": 3}  # [CLS], a token and [SEP]
        check_fields(self, positive=("num_layers", "hidden_size", "num_heads"), at_least=windows)


@dataclass(frozen=True)
class ModelConfig:
    """The towers.

    Attributes:
        mode: `latent` freezes the text encoder and learns on its vectors; `text` fine-tunes the encoder.
        encoder: the text encoder.
        latent: sizes of the latent towers.
        state_chunk_window: text mode: most tokens that one taken chunk adds to the state.
        scale: text mode: constant that divides the vectors of both towers.
        compute: precision of the towers and recomputation in the backward pass.
    """

    mode: Literal["latent", "text"] = "latent"
    encoder: EncoderSpec = field(default_factory=EncoderSpec)
    latent: LatentConfig = field(default_factory=LatentConfig)
    state_chunk_window: int = 64
    scale: float = 10.0
    compute: Compute = field(default_factory=Compute)

    def __post_init__(self) -> None:
        check_fields(self, at_least={"state_chunk_window": 2}, within={"scale": "(0, inf]"})  # a token and [SEP]


@runtime_checkable
class Searched(Protocol):
    """A run over an `Index`, as a `Retriever`."""

    def search(
        self, question: str, top_k: int | None = None, *, retriever: "QRagRetriever | None" = None
    ) -> Sequence[Hit]:
        """As `Index.search`."""
        ...


@dataclass(frozen=True)
class QRagRetriever:
    """A trained or new retriever: it turns a question and chunks into picks.

    Attributes:
        model: config of the towers.
        env: config of the decision process.
        network: the towers as pure functions.
        params: their parameters.
        encoder: the frozen encoder (latent) or the architecture and tokenizer of the towers (text); None for vectors.
        constants: latent mode: `mean` and `std` of the training vectors.
    """

    model: ModelConfig
    env: EnvConfig
    network: Network
    params: PyTree
    encoder: LoadedEncoder | None
    constants: Mapping[str, np.ndarray]

    @cached_property
    def search_functions(self) -> SearchFunctions:
        """Compiled searches, shared by all indices of this retriever and kept as long as it exists."""
        return make_search_functions(self.network)

    @cached_property
    def block_functions(self) -> BlockFunctions:
        """Compiled searches of contexts that are scored in blocks; kept likewise."""
        return make_block_functions(self.network)

    @cached_property
    def chunk_encoder(self) -> ChunkEncoder:
        """The encoder that embeds a corpus for `action_bank`; kept likewise.

        Raises:
            UsageError: the run was trained on given vectors and has no encoder.
        """
        if self.encoder is None:
            raise UsageError("this run was trained on given vectors and has no text encoder: give vectors, not texts")
        if self.model.mode == "latent":
            return ChunkEncoder(self.encoder, self.model.encoder.window)
        tower = replace(self.encoder, params=self.params["action"])
        return ChunkEncoder(tower, self.model.encoder.window, self.model.scale)

    def over(self, index: "Searched") -> Retriever:
        """Searches of an index by this run."""
        return _RunOver(self, index)

    def rows(
        self, texts: Texts, kind: Kind, progress: Progress | None = None, mapped: bool = False
    ) -> tuple[Rows, int]:
        """Inputs of the towers for every text, and the number of texts that the window cut.

        Args:
            texts: any number of them.
            kind: chunks or questions; the windows and prompts differ.
            progress: of the embedding.
            mapped: keep vectors of chunks on the disk (`files.mapped`).

        Raises:
            InputError: vectors do not fit the model.
            UsageError: texts were given to a model of vectors, or vectors to text towers.
        """
        if not isinstance(texts, np.ndarray):
            return _read_texts(self.model, self.encoder, texts, kind, progress, mapped)
        if self.model.mode != "latent":
            raise UsageError("text mode reads texts: set model.mode=latent for a task of vectors")
        if texts.shape[1:] != self.constants["mean"].shape:
            raise InputError(f"vectors of {texts.shape[1]} components, the model reads {len(self.constants['mean'])}")
        return VectorRows(np.asarray(texts, np.float32)), 0

    def action_vectors(
        self, rows: Rows, texts: Texts, progress: Progress | None = None, mapped: bool = False
    ) -> np.ndarray:
        """The index: an unrotated action vector for every text, float32 [rows, dim]; built once.

        Args:
            rows: of the texts; latent towers read them.
            texts: text towers embed them, sorted by length in fixed shapes.
            progress: of the text towers.
            mapped: keep them on the disk, and compute them in blocks.
        """
        actions, out = jax.jit(self.network.actions), mapped_array((len(texts), self.network.dim)) if mapped else None
        if isinstance(rows, VectorRows):
            if out is None:
                return np.asarray(actions(self.params, rows))
            for first in range(0, len(texts), BLOCK):
                part = rows.vectors[first : first + BLOCK]
                filled = np.pad(part, ((0, BLOCK - len(part)), (0, 0)))  # one shape for all
                out[first : first + BLOCK] = np.asarray(actions(self.params, VectorRows(filled)))[: len(part)]
            return out
        assert self.encoder is not None and not isinstance(texts, np.ndarray)
        tower = replace(self.encoder, params=self.params["action"])
        vectors = make_embedder(tower, window=self.model.encoder.window)(texts, progress, out)
        return np.divide(vectors, np.float32(self.model.scale), out=out)


@dataclass(frozen=True)
class _RunOver:
    run: QRagRetriever
    index: Searched

    def search(self, question: str, top_k: int | None = None) -> Sequence[Hit]:
        return self.index.search(question, top_k, retriever=self.run)


def new_retriever(
    model: ModelConfig,
    env: EnvConfig,
    texts: Texts,
    key: jax.Array,
    progress: Progress | None = None,
    questions: Texts = (),
    encoder: LoadedEncoder | None = None,
    vectors: np.ndarray | None = None,
) -> tuple[QRagRetriever, Rows, int]:
    """A fresh retriever for the chunk texts (or vectors) of a training task.

    Args:
        model: config of the towers.
        env: config of the decision process.
        texts: training chunks; they give latent towers their standardisation and, with the questions, a `scratch`
            encoder its vocabulary.
        key: draws the parameters; consumed.
        progress: of the embedding of the texts.
        questions: of the training data.
        encoder: replaces the one that `model.encoder` names; None loads or draws that one.
        vectors: of the texts by that encoder, if they are known; latent mode.

    Returns:
        (retriever, rows of the texts, number of texts cut by the window).

    Raises:
        UsageError: the encoder's source does not fit the kind of task.
    """
    given_vectors = isinstance(texts, np.ndarray)
    if given_vectors != (model.encoder.source == "vectors"):
        raise UsageError("model.encoder.source=vectors works only with data.task=vectors")
    if given_vectors and model.mode != "latent":
        raise UsageError("text mode reads texts: set model.mode=latent for a task of vectors")
    encoder_key, key = jax.random.split(key)
    if given_vectors:
        encoder, rows, num_cut = None, VectorRows(np.asarray(texts, np.float32)), 0
    else:
        encoder = encoder or _make_encoder(model.encoder, [*texts, *questions], encoder_key)
        if model.mode == "text":  # towers that are trained learn without prompts, as in the paper
            encoder = replace(encoder, prompts=NO_PROMPTS)
        if vectors is None:
            rows, num_cut = _read_texts(model, encoder, texts, "chunk", progress)
        else:
            rows, num_cut = VectorRows(np.asarray(vectors, np.float32)), 0
    constants = _standardisation(rows.vectors) if isinstance(rows, VectorRows) else {}
    network = _network(model, encoder, constants)
    return QRagRetriever(model, env, network, _fresh_params(network, env, key), encoder, constants), rows, num_cut


def with_fresh_params(retriever: QRagRetriever, key: jax.Array) -> QRagRetriever:
    """The retriever that `new_retriever` would make with another key; a `scratch` encoder stays."""
    return replace(retriever, params=_fresh_params(retriever.network, retriever.env, jax.random.split(key)[1]))


def with_constants(retriever: QRagRetriever, constants: Any, source: str) -> QRagRetriever:
    """The retriever with the constants of another, because parameters are valid only with the constants of their
    training.

    Args:
        constants: of the other one, as they were read.
    """
    kept = {name: np.asarray(value) for name, value in constants.items()} if isinstance(constants, Mapping) else None
    own = {name: (value.shape, value.dtype) for name, value in retriever.constants.items()}
    fit = kept is not None and {name: (value.shape, value.dtype) for name, value in kept.items()} == own
    if kept is None or not fit or (own and not _standardises(kept, retriever.encoder)):
        wanted = ", ".join(f"{name} {dtype}{list(shape)}" for name, (shape, dtype) in own.items()) or "none"
        raise InputError(
            f"{source}: its constants are not a mean and standard deviation of such vectors (wanted: {wanted}); "
            f"{ADVICE}"
        )
    return replace(retriever, network=_network(retriever.model, retriever.encoder, kept), constants=kept)


def _fresh_params(network: Network, env: EnvConfig, key: jax.Array) -> PyTree:
    stop_head = env.stop_head if env.stop else None
    params = {**network.init(key), **fresh_heads(network.dim, env.num_q_heads, stop_head, env.ranking_scale)}
    if env.links:  # with a key of its own: the towers are those of a run without
        inputs = env.num_link_inputs
        params["links"] = fresh_links(jax.random.fold_in(key, 1), inputs, env.link_width, env.num_q_heads)
    return params


def _standardisation(vectors: Any) -> dict[str, np.ndarray]:
    """Mean and standard deviation of every component.

    Squares of what is beyond 1e19 are infinite in float32, and so would be the deviation: all vectors would be zeros.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = np.mean(vectors, axis=0), np.std(vectors, axis=0)
    if not (np.isfinite(mean) & np.isfinite(std)).all():
        wide = np.asarray(vectors, np.float64)
        mean, std = np.mean(wide, axis=0).astype(np.float32), np.std(wide, axis=0).astype(np.float32)
    return {"mean": mean, "std": np.where(std < _DEAD_COMPONENT, 1.0, std).astype(np.float32)}


def _read_texts(
    model: ModelConfig,
    encoder: LoadedEncoder | None,
    texts: Sequence[str],
    kind: Kind,
    progress: Progress | None,
    mapped: bool = False,
) -> tuple[Rows, int]:
    """Vectors of the frozen encoder (latent) or token rows (text), and how many texts were cut."""
    if encoder is None:
        raise UsageError("this model was trained on given vectors and has no text encoder: give vectors, not texts")
    window = model.encoder.window if kind == "chunk" else model.encoder.question_window
    if model.mode == "latent":
        embedder = make_embedder(encoder, window=window)
        out = mapped_array((len(texts), embedder.dim)) if mapped else None
        vectors = embedder(texts, progress, out) if kind == "chunk" else embedder.questions(texts)
        return VectorRows(vectors), embedder.counts.num_texts_cut
    table = encoder.tokenizer.encode(texts, window)
    return TokenRows(table.tokens, table.lengths), table.num_texts_cut


def drawn_encoder(model: ModelConfig, folder: Path) -> LoadedEncoder | None:
    """The `scratch` encoder that a checkpoint of latent towers keeps; None where there is another or none.

    Other devices, releases or flags of XLA would draw it with other last bits.
    """
    is_kept = model.mode == "latent" and model.encoder.source == "scratch"
    return load_encoder(folder / "files" / "encoder") if is_kept else None


def retriever_around(model: ModelConfig, env: EnvConfig, encoder: LoadedEncoder) -> QRagRetriever:
    """Text towers that both are the given encoder, as it is."""
    network = _network(model, encoder, {})
    return QRagRetriever(model, env, network, network.init(jax.random.key(0)), encoder, {})


def retriever_files(retriever: QRagRetriever) -> dict[str, bytes]:
    """Files that a checkpoint needs besides its arrays to be complete.

    Latent mode keeps the whole frozen encoder; text mode keeps its config and tokenizer, because its weights are
    parameters.
    """
    if retriever.encoder is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        encoder = retriever.encoder
        save_encoder(
            folder,
            encoder.config,
            encoder.params,
            encoder.tokenizer,
            pooler=encoder.pooler,
            prompts=encoder.prompts if retriever.model.mode == "latent" else NO_PROMPTS,
        )
        names = sorted(path.relative_to(folder) for path in Path(folder).rglob("*") if path.is_file())
        kept = [name for name in names if retriever.model.mode == "latent" or name.suffix != ".safetensors"]
        return {f"encoder/{name.as_posix()}": (Path(folder) / name).read_bytes() for name in kept}


def params_group(about: Mapping[str, Any]) -> str:
    """The name of the parameters that are the result of a checkpoint with this metadata."""
    return "best_params" if "dev" in about else "params"


def read_threshold(metadata: Mapping[str, Any]) -> tuple[float, frozenset[str]] | None:
    """The threshold on Q in the metadata of a checkpoint, and fingerprints of the questions that it was fitted on.

    None if the run held out no questions or is not finished.
    """
    dev = metadata.get("dev", {})
    if not isinstance(dev, dict):
        raise InputError(f"metadata of the checkpoint: dev is {dev!r:.100}: copy the run again")
    if "threshold" not in dev:
        return None
    value, fitted_on = dev["threshold"], dev.get("fitted_on")
    is_number = type(value) in (int, float) and abs(value) <= sys.float_info.max
    if not is_number or not isinstance(fitted_on, list) or not all(isinstance(name, str) for name in fitted_on):
        raise InputError(
            f"metadata of the checkpoint: dev.threshold {value!r:.100} is not a threshold: copy the run again"
        )
    return float(value), frozenset(fitted_on)


def save_for_inference(saved: Checkpoint, folder: Path) -> Path:
    """Saves a checkpoint again with only the arrays that `load_retriever` reads: no optimiser, no second parameters.

    Args:
        saved: with any groups; the needed ones are read from its folder.

    Returns:
        The folder of the step.
    """
    groups = (params_group(saved.metadata), "constants")
    arrays = load_checkpoint(saved.folder, groups=groups).arrays
    return save_checkpoint(folder, saved.step, arrays, saved.config, saved.files, saved.metadata)


def load_retriever(folder: str | Path, step: int | None = None) -> QRagRetriever:
    """The retriever of a run folder; needs nothing but that folder.

    A run with held-out questions gives the parameters with the best score on them; another run gives its last ones.

    Raises:
        UsageError: no such folder or step.
        InputError: a damaged or foreign checkpoint.
    """
    saved = load_checkpoint(folder, step=step, groups=lambda about: (params_group(about), "constants"))
    group = params_group(saved.metadata)
    source = str(saved.folder / "config.yaml")
    model = config_from_dict(ModelConfig, saved.config.get("model", {}), source)
    env = config_from_dict(EnvConfig, saved.config.get("env", {}), source)
    for name in (group, "constants"):
        if not isinstance(saved.arrays[name], dict):
            raise InputError(f"{saved.folder}: its group {name} is not a tree of arrays; {ADVICE}")
    params = jax.tree.map(jnp.asarray, saved.arrays[group])
    constants = {name: np.asarray(value) for name, value in saved.arrays["constants"].items()}
    encoder = None
    if model.encoder.source != "vectors":
        encoder = _read_encoder(saved.folder / "files" / "encoder", model, params)
    if model.mode == "latent" and not _standardises(constants, encoder):
        raise InputError(f"{saved.folder}: its constants are not a mean and standard deviation of vectors; {ADVICE}")
    network = _network(model, encoder, constants)
    _check_fits(model, env, network, params, encoder, source)
    return QRagRetriever(model, env, network, params, encoder, constants)


def _standardises(constants: Mapping[str, np.ndarray], encoder: LoadedEncoder | None) -> bool:
    """True if these can be the `_standardisation` of vectors of the encoder."""
    mean, std = constants.get("mean"), constants.get("std")
    if mean is None or std is None or mean.ndim != 1 or mean.shape != std.shape:
        return False
    if encoder is not None and len(mean) != encoder.config.hidden_size:
        return False
    return bool(np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all())


def _check_fits(
    model: ModelConfig, env: EnvConfig, network: Network, params: PyTree, encoder: LoadedEncoder | None, source: str
) -> None:
    """Refuses parameters of other shapes than a config makes: they were not trained with it."""
    there = _shapes(params)
    layers = model.latent.num_layers if model.mode == "latent" or encoder is None else encoder.config.num_layers
    if layers > len(there):  # before a network of so many is traced
        raise InputError(f"{source}: {layers:,} layers, more than the parameters have; {ADVICE}")
    if model.mode == "text" and encoder is not None:
        drawn = partial(init_encoder, config=encoder.config)
        network = network._replace(init=lambda key: {"state": drawn(key), "action": drawn(key)})
    wanted = _shapes(jax.eval_shape(lambda key: _fresh_params(network, env, key), jax.random.key(0)))
    if differing := sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name)):
        name = differing[0]
        raise InputError(
            f"{source}: made for {name} of shape {wanted.get(name, 'absent')}, which is {there.get(name, 'absent')} in "
            f"the parameters; {ADVICE}"
        )


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}


def _make_encoder(spec: EncoderSpec, texts: Sequence[str], key: jax.Array) -> LoadedEncoder:
    if spec.source != "scratch":
        loaded = load_encoder(
            spec.source,
            num_layers=spec.num_layers,
            pooling=spec.pooling,
            normalize=spec.normalize,
            revision=spec.revision,
        )
        refuse_projection(loaded.config, spec.source, "a run")
        return loaded
    tokenizer = train_word_level(texts)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=spec.hidden_size,
        num_layers=spec.num_layers or 2,
        num_heads=spec.num_heads,
        intermediate_size=4 * spec.hidden_size,
        activation="gelu_tanh",
        pooling=spec.pooling or "mean",
        normalize=spec.normalize,
    )
    return LoadedEncoder(config, init_encoder(key, config), tokenizer)


def _network(model: ModelConfig, encoder: LoadedEncoder | None, constants: Mapping[str, np.ndarray]) -> Network:
    if model.mode == "latent":
        make = make_prior_network if model.latent.prior else make_latent_network
        return make(model.latent, constants["mean"], constants["std"], model.compute)
    assert encoder is not None
    return make_text_network(
        encoder.config,
        lambda key: encoder.params,  # both towers start from the loaded or drawn encoder
        encoder.tokenizer.sep_id,
        model.scale,
        model.state_chunk_window,
        default_tokens_per_block(),
        model.compute,
        encoder.tokenizer.num_special - 1,
    )


def _read_encoder(folder: Path, model: ModelConfig, params: PyTree) -> LoadedEncoder:
    """The encoder of a checkpoint: whole, or with the action tower's parameters in text mode."""
    if model.mode == "latent":
        return load_encoder(folder)
    config = read_encoder_config(folder)
    if not isinstance(params.get("action"), dict):
        raise InputError(f"{folder}: no parameters of the action tower; {ADVICE}")
    return LoadedEncoder(config, params["action"], TextTokenizer.from_file(folder / "tokenizer.json"))
