"""Small encoders, and taggers and compressors that tests build for any encoder without training."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from qrag_jax.models.encoder.text_encoder import EncoderConfig, init_encoder
from qrag_jax.models.encoder.tokenizer import TextTokenizer, train_word_level
from qrag_jax.models.encoder.weights import LoadedEncoder, load_encoder, save_encoder
from qrag_jax.models.tagger.features import fit_basis, principal_components, with_components
from qrag_jax.models.tagger.predict import read_gaps, vectors_of
from qrag_jax.models.tagger.surface import NUM_CUES
from qrag_jax.models.tagger.tagger import NUM_CLASSES, Tagger
from support.headed_documents import sentence_text

ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


@contextmanager
def small_minilm(folder: Path) -> Iterator[None]:
    """Two layers of MiniLM stand in its place; `folder` gets them."""
    loaded = load_encoder("minilm", num_layers=2)
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer, max_seq_length=loaded.max_seq_length)
    package = SimpleNamespace(find=lambda: folder / "model.safetensors", is_installed=lambda: True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qrag_jax.models.encoder.sources._PACKAGE", package)
        yield


def words_of(texts):
    return sorted({word for text in texts for word in text.lower().replace("?", " ?").replace(".", " .").split()})


def byte_bpe(texts) -> TextTokenizer:
    """Byte pairs, as RoBERTa has them: a space belongs to the token after it, every text can be written."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=ROBERTA_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return TextTokenizer(tokenizer)


def unigram(texts) -> TextTokenizer:
    """Pieces with scores, as XLM-RoBERTa has them: whole words, single characters, unknown ones."""
    words = words_of(texts)
    pieces = [(token, 0.0) for token in ROBERTA_TOKENS] + [("▁", -6.0)] + [(f"▁{word}", -3.0) for word in words]
    pieces += [(character, -8.0) for character in sorted({character for word in words for character in word})]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(ROBERTA_TOKENS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return TextTokenizer(tokenizer)


def mpnet_words(texts) -> TextTokenizer:
    """Word pieces as MPNet has them: its own special tokens, and all of BERT's in the vocabulary; unknown is [UNK]."""
    vocabulary = [*ROBERTA_TOKENS, *BERT_TOKENS, *words_of(texts), "<mask>"]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return TextTokenizer(tokenizer)


def bytes_with_end(texts) -> TextTokenizer:
    """Byte pairs, as Qwen3-Embedding has them: no token before a text, an end behind it, no unknown token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    return TextTokenizer(tokenizer)


TOKENIZERS = {
    "bert": train_word_level, "roberta": byte_bpe, "xlm-roberta": unigram, "mpnet": mpnet_words,
    "nomic_bert": train_word_level, "modernbert": train_word_level, "qwen3": bytes_with_end,
}  # fmt: skip
NUM_TYPES = {"bert": 2, "roberta": 1, "xlm-roberta": 1, "mpnet": 0}
OF_FAMILY = {
    "nomic_bert": {"type_vocab_size": 2, "rope_theta": 1000.0, "activation": "silu"},
    "modernbert": {
        "num_layers": 4, "rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "local_window": 4, "global_every": 3,
        "layer_norm_eps": 1e-5,
    },
    "qwen3": {"num_kv_heads": 2, "head_dim": 8, "rope_theta": 1e6, "activation": "silu", "pooling": "last"},
}  # fmt: skip


@cache
def shapes_of(config: EncoderConfig):
    return jax.eval_shape(partial(init_encoder, config=config), jax.random.key(0))


def random_params(config: EncoderConfig, seed=0):
    """Parameters with biases and norms that are not trivial, so that a forgotten one shows; nothing is compiled."""
    rng = np.random.default_rng(seed)
    draw = lambda leaf: jnp.asarray(rng.normal(0.2, 0.4, leaf.shape), leaf.dtype)  # noqa: E731
    return jax.tree.map(draw, shapes_of(config))


def random_encoder(family: str, texts, make_tokenizer=None, **changes) -> LoadedEncoder:
    """A small encoder of a family: random weights and a tokenizer, by default the family's, that knows the texts."""
    tokenizer = (make_tokenizer or TOKENIZERS[family])(texts)
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "intermediate_size": 32, "max_positions": 64}
    sizes |= {"family": family, "type_vocab_size": NUM_TYPES.get(family, 0), "vocab_size": tokenizer.vocab_size}
    sizes |= OF_FAMILY.get(family, {}) | changes
    config = EncoderConfig(**sizes)
    return LoadedEncoder(config, random_params(config), tokenizer)


_SENTENCES = [f"Sentence {number} says {word}." for number, word in enumerate("one two three four five".split())]


def eager_tagger(encoder, threshold=0.5):
    """For it a section of level 1 begins with every sentence."""
    text = sentence_text(_SENTENCES)
    (vectors,) = vectors_of([text], encoder)
    centre, components = principal_components([vectors], 3)
    basis = fit_basis([with_components(read_gaps(text, vectors), vectors, centre, components)], centre, components)
    params = {
        "weights": np.zeros((len(basis.mean), NUM_CLASSES)),
        "cues": np.zeros((NUM_CUES, NUM_CLASSES)),
        "bias": np.array([0.0, 9.0, 0.0, 0.0]),
    }
    return Tagger(params, basis, threshold, encoder.fingerprint, "minilm")
