"""The encoder of a study: what it charges, chunks of any size, late chunks, the cache and the warm-up."""

import re
import warnings
from dataclasses import replace

import jax
import numpy as np
import pytest
from support.encoders import random_encoder

import qrag_jax.eval.study.cells.study_encoder as encoder_module
import qrag_jax.models.encoder.embedder as embedder_module
from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.chunking.strategies.late import LateConfig, late_vectors
from qrag_jax.eval.study.cells.costs import Meter, encoder_flops
from qrag_jax.eval.study.cells.sentence_cache import SentenceCache
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder, load_study_encoder
from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.text_encoder import encode, encode_tokens
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.types import Chunk, Document, InputError, TextCounts, UsageError

CONFIG = EncoderConfig(vocab_size=5, hidden_size=4, num_layers=1, num_heads=1, intermediate_size=8)
WORD = re.compile(r"\S+")
TEXTS = {"a": "x1 yy x2 z y1 zz x3 y2", "b": "yy y1", "c": "zz z1 x1"}


class WordEmbedder:
    """A token is a word; its vector counts the letters x, y, z; that of a text is the mean of its tokens."""

    dim = 4

    def __init__(self, window=8, scale=1.0):
        self.window = window
        self.lengths = (window,)
        self.counts = TextCounts()
        self.calls = []
        self._scale = scale

    def __call__(self, texts, progress=None):
        self.calls.append(list(texts))
        rows = [self._read(text, self.window - 2) for text in texts]
        if progress is not None:
            progress(len(texts), len(texts))
        return np.array([row.mean(axis=0) for row in rows], np.float32).reshape(-1, 4) * self._scale

    def tokens(self, text):
        spans = [match.span() for match in WORD.finditer(text)]
        vectors = self._read(text, len(spans))[1:] if spans else np.zeros((0, 4), np.float32)
        return vectors, np.array(spans, np.int64).reshape(-1, 2)

    def count_tokens(self, text):
        assert not re.search("[\ud800-\udfff]", text)
        return len(text.split())

    def _read(self, text, most):
        words = text.split()
        read = min(len(words), most)
        self.counts = self.counts.plus(1, read + 2, read < len(words))
        vectors = [[word.count(letter) for letter in "xyz"] + [0] for word in words[:read]]
        return np.array([[0, 0, 0, 0], *vectors], np.float32)


def study_encoder(**options):
    return StudyEncoder(WordEmbedder(**options), CONFIG, "words", "print")


def chunk_of(document, *spans, num_tokens=None):
    text = "\n".join(TEXTS[document][start:end] for start, end in spans)
    return Chunk(f"{document}{spans}", document, spans, 1, len(text.split()) if num_tokens is None else num_tokens)


def unit(*vectors):
    vectors = np.array(vectors, np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves on by a second whenever somebody looks."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(encoder_module.time, "perf_counter", lambda: float(next(ticks)))


def test_embed_gives_unit_vectors_and_charges_what_was_read(clock):
    meter = Meter()
    vectors = study_encoder().embed(["x x y", "y z z"], meter)
    np.testing.assert_allclose(vectors, unit([2, 1, 0, 0], [0, 1, 2, 0]), atol=1e-6)
    assert vectors.dtype == np.float32
    assert meter == Meter(1.0, 10, encoder_flops(CONFIG, [5, 5]), 2, 0, 1.0)


def test_embed_cuts_at_the_window_and_says_so():
    meter = Meter()
    study_encoder(window=5).embed(["x " * 10, "y"], meter)
    assert (meter.tokens, meter.flops, meter.num_texts_cut) == (5 + 3, encoder_flops(CONFIG, [5, 3]), 1)


def test_embed_of_nothing_and_of_what_no_tokenizer_reads():
    encoder, meter = study_encoder(), Meter()
    assert encoder.embed([], meter).shape == (0, 4) and meter.tokens == meter.flops == 0
    assert encoder.embed(["x \ud800"], meter).shape == (1, 4) and encoder.count("a \udc00 b") == 3
    assert not encoder.embed([""], meter).any()  # of length 0, and it stays


def test_a_vector_that_is_not_finite_is_refused():
    meter = Meter()
    with pytest.raises(InputError, match="encoder words: the vector of 'x' is not finite"):
        study_encoder(scale=np.nan).embed(["x"], meter)


def test_short_chunks_are_embedded_as_they_are():
    encoder, meter = study_encoder(), Meter()
    chunks = [chunk_of("b", (0, 5)), chunk_of("a", (0, 2), (6, 8)), chunk_of("a", (0, 17))]
    vectors, num_beyond = encoder.chunk_vectors(TEXTS, chunks, meter)
    own = Meter()
    np.testing.assert_allclose(vectors, encoder.embed(["yy y1", "x1\nx2", "x1 yy x2 z y1 zz "], own), atol=1e-6)
    assert num_beyond == 0 and (meter.tokens, meter.flops, meter.num_texts) == (own.tokens, own.flops, 3)


def test_a_chunk_beyond_the_window_is_the_mean_of_its_windows(clock):
    encoder = study_encoder(window=5)
    meter, seen = Meter(), []
    chunks = [chunk_of("b", (0, 5)), chunk_of("a", (0, 22)), chunk_of("c", (0, 8))]
    report = lambda done, total: seen.append((done, total))  # noqa: E731
    vectors, num_beyond = encoder.chunk_vectors(TEXTS, chunks, meter, progress=report)
    # Three words a window: "x1 yy x2", "z y1 zz", "x3 y2", with the letters x, y, z counted.
    windows = unit([2, 2, 0, 0], [0, 1, 3, 0], [1, 1, 0, 0])
    np.testing.assert_allclose(vectors[1], unit(windows.mean(axis=0))[0], atol=1e-6)
    np.testing.assert_allclose(vectors[[0, 2]], unit([0, 3, 0, 0], [1, 0, 3, 0]), atol=1e-6)
    assert num_beyond == 1
    # All of it in one call, cut and charged once; finding the windows is paid, counting for the meter is not.
    assert encoder._embedder.calls == [["yy y1", "x1 yy x2", "z y1 zz", "x3 y2", "zz z1 x1"]]
    assert seen == [(5, 5)]
    assert meter == Meter(2.0, 4 + 5 + 5 + 4 + 5, encoder_flops(CONFIG, [4, 5, 5, 4, 5]), 5, 0, 2.0)


@pytest.mark.parametrize("num_words", [1, 5, 6, 7, 12, 13, 40])
def test_every_word_of_a_long_chunk_is_read_once(num_words):
    words = [f"x{i}" for i in range(num_words)]
    texts = {"d": " ".join(words)}
    encoder = study_encoder(window=8)
    chunk = Chunk("d", "d", ((0, len(texts["d"])),), 0, num_words)
    vectors, num_beyond = encoder.chunk_vectors(texts, [chunk], Meter())
    assert " ".join(encoder._embedder.calls[0]).split() == words
    assert num_beyond == (num_words > 6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_no_chunks():
    vectors, num_beyond = study_encoder().chunk_vectors(TEXTS, [], Meter())
    assert vectors.shape == (0, 4) and num_beyond == 0


def test_chunks_that_were_counted_otherwise_are_refused():
    with pytest.raises(InputError, match=r"words: read 4 tokens where 9 were counted: .* with StudyEncoder.count"):
        study_encoder(window=20).chunk_vectors(TEXTS, [chunk_of("b", (0, 5), num_tokens=7)], Meter())
    with pytest.raises(InputError, match="read 8 tokens where 3 were counted"):
        study_encoder().chunk_vectors(TEXTS, [chunk_of("a", (0, 22), num_tokens=1)], Meter())


def test_an_unknown_word_that_counts_by_its_characters_is_charged_as_it_is_read():
    class Unknowing(WordEmbedder):
        def count_tokens(self, text):
            return len(text.split()) + 2 * text.count("\u02c7")

    encoder, meter, texts = StudyEncoder(Unknowing(), CONFIG, "words", "print"), Meter(), {"d": "x1 \u02c7 y1"}
    chunk = Chunk("d", "d", ((0, 7),), 0, encoder.count(texts["d"]))
    assert chunk.num_tokens == 5
    encoder.chunk_vectors(texts, [chunk], meter)
    assert meter.tokens == 3 + 2
    with pytest.raises(InputError, match="read 5 tokens where 6 were counted"):
        encoder.chunk_vectors(texts, [replace(chunk, num_tokens=4)], meter)


def test_late_chunks_are_those_of_late_vectors_in_the_order_given(clock):
    encoder, meter, seen = study_encoder(), Meter(), []
    chunks = [chunk_of("a", (9, 22)), chunk_of("b", (0, 5)), chunk_of("a", (0, 8)), chunk_of("c", (0, 2), (6, 8))]
    late = LateConfig(window_tokens=6, overlap_tokens=1)
    report = lambda done, total: seen.append((done, total))  # noqa: E731
    vectors, num_beyond = encoder.chunk_vectors(TEXTS, chunks, meter, late, report)
    words = WordEmbedder()
    for chunk, vector in zip(chunks, vectors, strict=True):
        alone = late_vectors(TEXTS[chunk.document_id], [chunk.spans], words.tokens, words.count_tokens, 6, 1)
        np.testing.assert_allclose(vector, alone[0], atol=1e-6)
    assert num_beyond == 0 and seen == [(2, 4), (3, 4), (4, 4)]
    # Windows of 4 words that share one: 8 words of "a" are read as 4 + 4 + 2, those of "b" and "c" at once.
    lengths = [6, 6, 4, 4, 5]
    assert meter == Meter(1.0, sum(lengths), encoder_flops(CONFIG, lengths), 5, 0, 1.0)


def test_late_windows_are_never_larger_than_the_encoder_s():
    meter = Meter()
    study_encoder(window=5).chunk_vectors(TEXTS, [chunk_of("a", (0, 22))], meter, LateConfig(overlap_tokens=0))
    assert meter.flops == encoder_flops(CONFIG, [5, 5, 4])


def test_late_chunks_need_an_encoder_that_averages():
    encoder = StudyEncoder(WordEmbedder(), replace(CONFIG, pooling="cls"), "bge", "print")
    with pytest.raises(UsageError, match="late: encoder bge has pooling 'cls': .* choose an encoder with pooling mean"):
        encoder.chunk_vectors(TEXTS, [chunk_of("b", (0, 5))], Meter(), LateConfig())


def test_late_windows_out_of_range_are_refused_at_once():
    message = "late.overlap_tokens 64: give 0 to 5, less than the window of 8"
    with pytest.raises(UsageError, match=message):
        study_encoder().check_late(LateConfig())
    with pytest.raises(UsageError, match=message):
        study_encoder().chunk_vectors(TEXTS, [chunk_of("b", (0, 5))], Meter(), LateConfig())
    study_encoder().check_late(LateConfig(overlap_tokens=5))


def test_late_errors_name_the_document():
    outside = Chunk("b", "b", ((0, 9),), 1, 2)
    with pytest.raises(InputError, match=r"^b: chunk 0: span \(0, 9\) is not in the text of 5 characters"):
        study_encoder().chunk_vectors(TEXTS, [outside], Meter(), LateConfig(overlap_tokens=0))


def test_a_strategy_pays_the_same_whoever_came_first(tmp_path, clock):
    encoder, first, second = study_encoder(), Meter(), Meter()
    calls = [["x", "x y"], ["z z"], []]
    computed = [encoder.sentence_embed(SentenceCache(tmp_path), first)(texts) for texts in calls]
    read = [encoder.sentence_embed(SentenceCache(tmp_path), second)(texts) for texts in calls]
    assert [a.tobytes() for a in computed] == [b.tobytes() for b in read]
    assert len(encoder._embedder.calls) == 3
    assert replace(second, waited=0.0) == replace(first, waited=0.0)
    assert first.seconds == 3 and first.tokens == 3 + 4 + 4
    assert first.waited == 9 and second.waited == 3  # a hit looks at the clock twice, a miss four times


def test_a_damaged_cache_is_computed_again(tmp_path):
    encoder, cache = study_encoder(), SentenceCache(tmp_path)
    vectors = encoder.sentence_embed(cache, Meter())(["x", "y"])
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    meter = Meter()
    with pytest.warns(UserWarning, match="its sentences are embedded again"):
        again = encoder.sentence_embed(cache, meter)(["x", "y"])
    assert np.array_equal(again, vectors) and meter.tokens == 6
    with warnings.catch_warnings(action="error"):  # written anew
        known = cache.get(encoder.fingerprint, ["x", "y"])
    assert known is not None and np.array_equal(known[0], vectors)


def test_encoders_do_not_share_vectors(tmp_path):
    cache = SentenceCache(tmp_path)
    embedders = [WordEmbedder(), WordEmbedder()]
    for number, embedder in enumerate(embedders):
        StudyEncoder(embedder, CONFIG, "words", f"print {number}").sentence_embed(cache, Meter())(["x"])
    assert [len(embedder.calls) for embedder in embedders] == [1, 1]


@pytest.fixture(scope="module")
def loaded():
    words = [*TEXTS.values(), "a"]
    return replace(random_encoder("bert", words, max_positions=72, hidden_size=8, num_layers=1), max_seq_length=12)


def real_encoder(loaded, window=None, tokens_per_block=256):
    embedder = make_embedder(loaded, window=window, tokens_per_block=tokens_per_block)
    return StudyEncoder(embedder, loaded.config, "tiny", "print", tokens_per_block)


@pytest.mark.slow
def test_nothing_is_compiled_after_the_warm_up(loaded, monkeypatch):
    # A config of its own, as compiled functions are shared by all embedders of one.
    loaded = replace(loaded, config=replace(loaded.config, layer_norm_eps=1e-9))
    traced, compiled = {}, {}
    for function in (encode, encode_tokens):

        def count(*args, function=function):
            traced[function.__name__] = traced.get(function.__name__, 0) + 1
            return function(*args)

        compiled[function.__name__] = jax.jit(count, static_argnums=(0, 4))
    monkeypatch.setattr(embedder_module, "_compiled", compiled.__getitem__)
    encoder, seen = real_encoder(loaded, window=20, tokens_per_block=320), []
    encoder.warm_up(lambda done, total: seen.append((done, total)))
    warm = dict(traced)
    assert seen == [(done, 3) for done in range(1, 4)] and warm["encode_tokens"] == 3  # 8, 16 and 20
    rng, meter = np.random.default_rng(0), Meter()
    for _ in range(30):
        texts = ["a " * int(size) for size in rng.integers(0, 30, rng.integers(1, 80))]
        encoder.embed(texts, meter)
    texts = {"a": "x1 yy x2 z y1 zz x3 y2 " * 20}
    document = Document("a", texts["a"])
    for size in (5, 18, 60):
        chunks = make_chunker(ChunkConfig("recursive", max_tokens=size), encoder.count)(document)
        encoder.chunk_vectors(texts, chunks, meter)
        encoder.chunk_vectors(texts, chunks, meter, LateConfig(window_tokens=20, overlap_tokens=5))
    assert traced == warm


def test_the_warm_up_reads_the_lengths_of_the_embedder_and_no_others():
    embedder = WordEmbedder(window=8192)
    embedder.lengths = (2048, 4096, 8192)  # none between them, as 3,072 and 6,144 would be
    StudyEncoder(embedder, CONFIG, "words", "print").warm_up()
    assert sorted({len(text.split()) + 2 for call in embedder.calls for text in call}) == [2048, 4096, 8192]


def test_the_texts_of_the_warm_up_fit_with_any_tokenizer():
    for family in ("bert", "roberta", "xlm-roberta", "mpnet"):
        loaded = random_encoder(family, list(TEXTS.values()), max_positions=40, hidden_size=8, num_layers=1)
        encoder = real_encoder(loaded, window=24)
        for length in (2, 6, 14, 22):
            assert 0 < encoder.count(encoder._text_of(length)) <= length


def test_a_real_encoder_charges_what_its_tokens_say(loaded):
    encoder, meter = real_encoder(loaded), Meter()
    texts = list(TEXTS.values())
    vectors = encoder.embed(texts, meter)
    assert vectors.shape == (3, 8) and meter.tokens == 10 + 4 + 5
    assert meter.flops == encoder_flops(loaded.config, [10, 4, 5])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    chunks = [Chunk(name, name, ((0, len(text)),), 0, encoder.count(text)) for name, text in TEXTS.items()]
    np.testing.assert_allclose(encoder.chunk_vectors(TEXTS, chunks, Meter())[0], vectors, atol=1e-5)
    narrow = real_encoder(loaded, window=6)
    averaged, num_beyond = narrow.chunk_vectors(TEXTS, chunks, Meter())
    halves = narrow.embed(["x1 yy x2 z", "y1 zz x3 y2"], Meter()).astype(np.float64)
    np.testing.assert_allclose(averaged[0], unit(halves.sum(axis=0))[0], atol=1e-5)
    assert num_beyond == 1


def test_late_chunks_of_a_real_encoder(loaded):
    encoder, meter = real_encoder(loaded), Meter()
    late = LateConfig(window_tokens=12, overlap_tokens=0)
    chunks = [Chunk("a", "a", ((0, len(TEXTS["a"])),), 1, 8)]
    vectors, num_beyond = encoder.chunk_vectors(TEXTS, chunks, meter, late)
    tokens, _ = encoder._embedder.tokens(TEXTS["a"])
    np.testing.assert_allclose(vectors, unit(tokens.mean(axis=0)), atol=1e-5)
    assert num_beyond == 0 and (meter.tokens, meter.num_texts) == (10, 1)


def test_an_encoder_from_its_folder(loaded, tmp_path):
    save_encoder(tmp_path, loaded.config, loaded.params, loaded.tokenizer, max_seq_length=12)
    encoder = load_study_encoder(str(tmp_path))
    assert (encoder.dim, encoder.window, encoder.model) == (8, 12, str(tmp_path))
    other = load_study_encoder(str(tmp_path), window=10)
    assert other.window == 10 and other.fingerprint != encoder.fingerprint
    assert load_study_encoder(str(tmp_path)).fingerprint == encoder.fingerprint
    np.testing.assert_allclose(
        encoder.embed(["x1 yy"], Meter()), real_encoder(loaded).embed(["x1 yy"], Meter()), atol=1e-6
    )
    with pytest.raises(UsageError, match="window 100: choose 3 to 72"):
        load_study_encoder(str(tmp_path), window=100)
