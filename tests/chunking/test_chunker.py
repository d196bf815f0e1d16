"""Every strategy through `make_chunker`: what all chunks promise, on odd texts and on whole novels."""

import gzip
import json
import os
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.odd_texts import (
    COUNTERS,
    MONOTONE_COUNTERS,
    TEXTS,
    check_chunks,
    count_characters,
    count_words,
    embed_by_hash,
    readable,
    text_of,
    times_covered,
)
from support.tiers import examples

from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
from qrag_jax.chunking.strategies.clusters import DbscanConfig, LinkageConfig
from qrag_jax.chunking.strategies.fixed import FixedConfig
from qrag_jax.chunking.strategies.headings import HeadingsConfig
from qrag_jax.chunking.strategies.hierarchy import OWN_POINTS, HierarchyConfig
from qrag_jax.chunking.strategies.late import LateConfig
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.strategies.recursive import RecursiveConfig
from qrag_jax.names import CHUNKERS, Noise, Threshold
from qrag_jax.types import Document, InputError, UsageError

_LAMBDAS = st.sampled_from([0.0, 0.25, 0.5, 1.0])
# Settings of strategies with which every word is in exactly one chunk; others are tried as they are.
PARTITIONS = {
    "fixed": st.builds(
        ChunkConfig,
        fixed=st.builds(FixedConfig, num_tokens=st.integers(1, 30))
        | st.builds(FixedConfig, num_chunks=st.integers(1, 5))
        | st.builds(FixedConfig, sentences_per_chunk=st.integers(1, 5)),
    ),
    "recursive": st.builds(ChunkConfig, recursive=st.builds(RecursiveConfig, st.integers(1, 30))),
    "breakpoint": st.builds(
        ChunkConfig,
        breakpoint=st.builds(
            BreakpointConfig, st.sampled_from(Threshold.__args__), st.just(None) | st.just(0.1), st.integers(0, 2)
        ),
    ),
    "linkage": st.builds(
        ChunkConfig,
        linkage=st.builds(LinkageConfig, num_clusters=st.integers(1, 5), lambda_=_LAMBDAS)
        | st.builds(LinkageConfig, max_sentences=st.integers(1, 5), lambda_=_LAMBDAS, stop_distance=st.just(None)),
    ),
    "dbscan": st.builds(
        ChunkConfig,
        dbscan=st.builds(
            DbscanConfig,
            eps=st.floats(0.05, 1),
            min_samples=st.integers(1, 4),
            lambda_=_LAMBDAS,
            noise=st.sampled_from(Noise.__args__),
        ),
    ),
    "late": st.builds(ChunkConfig, late=st.builds(LateConfig, num_tokens=st.integers(1, 30))),
    "headings": st.builds(ChunkConfig, headings=st.builds(HeadingsConfig, st.integers(1, 6))),
    "document": st.builds(ChunkConfig),
    "hierarchy": st.builds(
        ChunkConfig,
        hierarchy=st.builds(
            HierarchyConfig,
            st.sampled_from(sorted(OWN_POINTS)),
            st.none() | st.integers(1, 3),
            st.none() | st.integers(0, 30),
        ),
    ),
    "levels": st.builds(
        ChunkConfig,
        levels=st.builds(LevelsConfig, st.sampled_from(sorted(OWN_POINTS)))
        | st.builds(LevelsConfig, sizes=st.sampled_from([(16, 8, 4), (30,)])),
    ),
}
OVERLAPS = st.builds(
    ChunkConfig,
    fixed=st.builds(FixedConfig, num_tokens=st.integers(3, 30), overlap=st.integers(1, 3))
    | st.builds(FixedConfig, num_tokens=st.integers(3, 30), overlap_tokens=st.integers(1, 2))
    | st.builds(FixedConfig, num_chunks=st.integers(1, 5), overlap=st.integers(1, 2))
    | st.builds(FixedConfig, sentences_per_chunk=st.integers(3, 5), overlap=st.integers(1, 2)),
)
CONTIGUOUS = ("fixed", "recursive", "breakpoint", "late", "headings", "document", "hierarchy", "levels")
SIZES = st.tuples(st.none() | st.integers(1, 40), st.none() | st.integers(1, 40)).map(
    lambda sizes: sizes if None in sizes else (max(sizes), min(sizes))
)


def chunk_or_refuse(document: Document, config: ChunkConfig, count):
    """Chunks of two runs, which are equal; none if a character is larger than the budget, which is then said."""
    too_large = [
        one
        for one in document.text
        if one.strip() and config.max_tokens is not None and count(readable(one)) > config.max_tokens
    ]
    chunker = make_chunker(config, count, embed_by_hash)
    if too_large:
        with pytest.raises(InputError, match="document 7: character .* tokens, but max_tokens is"):
            chunker(document)
        return []
    chunks = chunker(document)
    assert chunker(document) == chunks
    return chunks


@pytest.mark.parametrize("strategy", CHUNKERS.names)
@examples(200)
@given(data=st.data())
def test_chunks_partition_the_text_and_keep_the_budget(strategy, data):
    document = Document("document 7", data.draw(TEXTS))
    max_tokens, min_tokens = data.draw(SIZES)
    count = data.draw(st.sampled_from(COUNTERS))
    config = replace(
        data.draw(PARTITIONS.get(strategy, st.just(ChunkConfig()))),
        strategy=strategy,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
    )
    chunks = chunk_or_refuse(document, config, count)
    if chunks:
        check_chunks(document, chunks, count, max_tokens)
        assert covers(strategy, document.text, chunks)
        if strategy in CONTIGUOUS and count in MONOTONE_COUNTERS and min_tokens is not None:
            check_nothing_small_could_be_joined(document.text, chunks, count, max_tokens, min_tokens)


def covers(strategy: str, text: str, chunks) -> bool:
    """True if every word is in a chunk, and in one alone unless the strategy's chunks overlap."""
    times = times_covered(text, chunks)
    return 0 not in times if strategy in CHUNKERS.choices("overlaps") else times == {1}


def check_nothing_small_could_be_joined(text: str, chunks, count, max_tokens: int | None, min_tokens: int) -> None:
    for left, right in zip(chunks, chunks[1:], strict=False):
        if left.level == right.level and min(left.num_tokens, right.num_tokens) < min_tokens:
            together = count(readable(text[left.spans[0][0] : right.spans[-1][1]]))
            assert max_tokens is not None and together > max_tokens


@examples(200)
@given(TEXTS, OVERLAPS, SIZES, st.sampled_from(COUNTERS))
def test_overlapping_chunks_cover_the_text_and_none_is_inside_another(text, config, sizes, count):
    document = Document("document 7", text)
    config = replace(config, max_tokens=sizes[0], min_tokens=sizes[1])
    chunks = chunk_or_refuse(document, config, count)
    if chunks:
        check_chunks(document, chunks, count, config.max_tokens)
        assert 0 not in times_covered(text, chunks)
        spans = [chunk.spans[0] for chunk in chunks]
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in zip(spans, spans[1:], strict=False))


def test_levels():
    text = "Preface.\n\n# A\n\nText.\n\n## B\n\nMore text.\n"
    levels = {
        "document": {0},
        "headings": {1, 2},
        "hierarchy": {0},
        "levels": {1, 2},
    }  # a hierarchy joins what is small
    for strategy in CHUNKERS:
        chunks = make_chunker(ChunkConfig(strategy), count_words, embed_by_hash)(Document("", text))
        assert {chunk.level for chunk in chunks} == levels.get(strategy, {1})


BAD_TEXTS = {
    "endless": "x" * 1_000,
    "endless_cjk": "\u5929" * 1_000,
    "nul": "a\0b. \0\0\0 c.",
    "only_nul": "\0",
    "surrogates": "High \ud800 and low \udfff. \udfff\ud800 End.",
    "one_surrogate": "\ud800",
    "wide_space": "\u3000First.\u3000\u3000Second.\u3000\n\u3000\nThird\u3000",
    "right_to_left": "\u05e9\u05dc\u05d5\u05dd. \u05e2\u05d5\u05dc\u05dd. \u0645\u0631\u062d\u061f \u202eabc\u202c.",
    "one_sentence": "One sentence.",
    "one_character": "x",
    "blank_around": "\n\n \t x \n\n",
    "byte_order_mark": "\ufeff# A\n\nb",
}


@pytest.mark.parametrize("strategy", CHUNKERS.names)
@pytest.mark.parametrize("name", BAD_TEXTS)
def test_odd_texts_are_cut_like_others(strategy, name):
    document = Document(name, BAD_TEXTS[name])
    characters = sum(1 for one in document.text if one.strip())
    for max_tokens in (1, 7, None):
        chunks = make_chunker(ChunkConfig(strategy, max_tokens), count_characters, embed_by_hash)(document)
        check_chunks(document, chunks, count_characters, max_tokens)
        assert covers(strategy, document.text, chunks)
        if max_tokens == 1:
            assert len(chunks) == characters
        if max_tokens == 7 and name.startswith("endless"):
            assert [chunk.num_tokens for chunk in chunks] == [7] * (characters // 7) + [characters % 7]


@pytest.mark.parametrize("strategy", CHUNKERS.names)
@pytest.mark.parametrize("text", ["", " ", "\n\n\u3000\t\x0b\x85"])
def test_a_text_of_blank_space_is_refused(strategy, text):
    chunker = make_chunker(ChunkConfig(strategy), count_words, embed_by_hash)
    with pytest.raises(InputError, match=re.escape("empty.txt: empty document; leave it out")):
        chunker(Document("empty.txt", text))


def test_the_chunks_of_a_long_word_are_counted_once_each_time_they_are_tried():
    seen = []

    def count(text: str) -> int:
        seen.append(len(text))
        return len(text)

    chunks = make_chunker(ChunkConfig("document", max_tokens=100), count)(Document("d", "x" * 100_000))
    assert len(chunks) == 1000
    assert sum(seen) < 4 * 100_000


def test_a_budget_in_words_of_one_token_gives_words():
    text = "One two, three. Four!"
    for strategy in CHUNKERS:
        document = Document("d", text)
        chunks = make_chunker(ChunkConfig(strategy, max_tokens=1), count_words, embed_by_hash)(document)
        assert [text_of(document, chunk) for chunk in chunks] == text.split()


@pytest.mark.parametrize("strategy", CHUNKERS.choices("vectors"))
def test_embedders_that_do_not_fit_are_refused(strategy):
    with pytest.raises(UsageError, match=f"strategy {strategy}: needs an embedder"):
        make_chunker(ChunkConfig(strategy), count_words)
    wrong = {
        "has nan": lambda texts: np.full((len(texts), 2), np.nan, np.float32),
        "gave": lambda texts: np.ones((len(texts) + 1, 2), np.float32),
    }
    for message, embed in wrong.items():
        with pytest.raises(InputError, match=f"a.txt: embedder: .*{message}"):
            make_chunker(ChunkConfig(strategy), count_words, embed)(Document("a.txt", "One. Two. Three."))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens 4 is above max_tokens 3"),
        ({"fixed": FixedConfig(num_tokens=0)}, "fixed.num_tokens 0"),
        ({"strategy": "recursive", "recursive": RecursiveConfig(0)}, "recursive.num_tokens 0"),
        (
            {"fixed": FixedConfig(num_tokens=3, num_chunks=2)},
            "fixed: num_chunks 2 and num_tokens 3: choose only one size",
        ),
        ({"strategy": "dbscan", "dbscan": DbscanConfig(eps=0)}, "dbscan.eps 0"),
    ],
)
def test_values_out_of_range_are_refused_with_the_config(values, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        ChunkConfig(**values)


def test_values_of_a_part_that_does_not_count_are_nobody_s_business():
    assert ChunkConfig("fixed", dbscan=DbscanConfig(eps=0)).strategy == "fixed"


def novels() -> dict[str, str]:
    """Title -> text of every novel in the folder that QRAG_NOVELS names."""
    texts = {}
    for path in sorted(Path(os.environ["QRAG_NOVELS"]).glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for novel in map(json.loads, lines):
                parts = [[f"# {section.get('head') or ''}", *section["paras"]] for section in novel["sections"]]
                texts[novel["title"]] = "\n\n".join(part for section in parts for part in section)
    return texts


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not os.environ.get("QRAG_NOVELS"), reason="QRAG_NOVELS names no folder of novels")
@pytest.mark.parametrize("strategy", CHUNKERS.names)
def test_novels(strategy):
    texts = novels()
    assert texts
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "linkage: .* sentences are linked in", UserWarning)
        for title, text in texts.items():
            document = Document(title, text)
            chunks = make_chunker(ChunkConfig(strategy, 200, 20), count_words, embed_by_hash)(document)
            check_chunks(document, chunks, count_words, 200)
            assert covers(strategy, text, chunks)


def test_sizes_default_to_the_maximum():
    """`max_tokens` alone fills chunks up to it: they are not filled to another size and cut again."""
    text = Document("d", " ".join(f"Sentence number {i} has seven words." for i in range(200)))
    for strategy in ("fixed", "recursive", "late"):
        for most in (100, 600):
            sizes = [chunk.num_tokens for chunk in make_chunker(ChunkConfig(strategy, most), count_words)(text)]
            assert min(sizes[:-1]) > most - 7, (strategy, most, sizes)


def test_words_that_a_tokenizer_does_not_know_are_cut_all_the_same():
    """WordPiece takes a word of more than 100 characters for one token."""
    document = Document("d", "\u0e01" * 1_050 + " end")
    chunks = make_chunker(ChunkConfig("document", max_tokens=4), count_words)(document)
    assert [chunk.spans for chunk in chunks] == [((0, 400),), ((400, 800),), ((800, 1_050),), ((1_051, 1_054),)]
    assert [chunk.num_tokens for chunk in chunks] == [1, 1, 1, 1]


@pytest.mark.parametrize("found", [float("nan"), 1.5, -1])
def test_counters_that_give_no_number_of_tokens_are_refused(found):
    with pytest.raises(InputError, match=r"d: token counter: .* tokens in 'One.'; return a whole number"):
        make_chunker(ChunkConfig("fixed", 5), lambda text: found)(Document("d", "One."))


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([(0, 0), (0, 9)], r"sentence splitter: span \(0, 0\) after character 0"),
        ([(0, 4)], "characters 4 to 9 are in no sentence"),
        ([(0, 9), (5, 9)], r"span \(5, 9\) after character 9"),
    ],
)
def test_splitters_that_lose_text_are_refused(sentences, message):
    with pytest.raises(InputError, match=f"d: .*{message}"):
        make_chunker(ChunkConfig("fixed", 5), count_words, split=lambda text: sentences)(Document("d", "One. Two."))
