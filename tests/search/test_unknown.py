"""Text in words that the encoder does not know: counted by characters, ranked by words, and said."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from support.encoders import random_encoder, small_minilm, unigram
from support.tiers import slow_but

from qrag_jax.index.build import build_index, index_settings
from qrag_jax.index.index import open_index
from qrag_jax.index.options import SearchOptions
from qrag_jax.models.encoder.sources import load_tokenizer
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.search.corpus import Corpus, embed_corpus
from qrag_jax.search.hybrid import rank_dense, rank_hybrid
from qrag_jax.types import Chunk, Document, InputWarning

GEORGIAN = "ძველი შუქურის მცველს აქვს გასაღები"
TEXTS = ["ბორანი კვირას ისვენებს.", GEORGIAN, "The keeper has the key.", "The ferry rests."]


class Knows:
    """An encoder of three numbers that knows ASCII only and finds the first text nearest to everything."""

    def __call__(self, texts, progress=None):
        rows = [[1.0, 0.1 * (text != TEXTS[0]), 0.1 * ("key" in text)] for text in texts]
        return np.array(rows, np.float32).reshape(-1, 3)

    def unknown_shares(self, texts):
        return np.array([float(not text.isascii()) for text in texts])


@pytest.fixture
def corpus():
    documents = tuple(Document(str(i), text) for i, text in enumerate(TEXTS))
    nodes = tuple(Chunk(str(i), str(i), ((0, len(text)),), 1, 1) for i, text in enumerate(TEXTS))
    return embed_corpus(Corpus(documents, nodes), Knows())


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("minilm")


@pytest.fixture
def minilm(tmp_path):
    """Two of its layers: which words it knows depends on none."""
    with small_minilm(tmp_path / "minilm"):
        yield


def test_a_question_in_unknown_words_is_ranked_by_words_alone(corpus):
    found = rank_hybrid("სად არის გასაღები?", corpus, Knows())
    assert found.ids[0] == 1 and found.scores[0] > found.scores[1] == 0
    assert sorted(found.ids.tolist()) == [0, 1, 2, 3]


def test_a_passage_in_unknown_words_does_not_outrank_by_its_vector(corpus):
    question = "Who opens it?"
    assert rank_dense(question, corpus, Knows()).ids[0] == 1
    assert rank_hybrid(question, corpus, Knows()).ids[0] == 3
    assert rank_hybrid("Who has გასაღები?", corpus, Knows()).ids[0] in (1, 2)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The keeper has the key.", 6),
        ("a" * 150, 1),  # ASCII counts as it is read
        ("გასაღები", 2),
        ("მ" * 43_000, 10_750),
        ("谁有钥匙", 4),
        ("🔑 key", 2),
    ],
)
def test_unknown_tokens_count_by_characters(tokenizer, text, tokens):
    assert tokenizer.count(text) == tokens


def test_shares_of_unknown_words(tokenizer):
    texts = ["Who has the key?", GEORGIAN, "", "🔑🔑", f"The key ({GEORGIAN}) is there and everybody knows where it is"]
    known, unknown, empty, emoji, half = tokenizer.unknown_shares(texts)
    assert known == empty == 0 and unknown == emoji == 1 and 0.3 < half < 0.6
    assert tokenizer.unknown_shares(["Кто взял ключ от маяка?"])[0] > 0.5  # letter by letter
    assert tokenizer.unknown_shares(["Wer hat den Schlüssel, café, naïve?"])[0] == 0


def test_it_is_said_once_with_a_remedy(minilm):
    index = open_index([Document("g.txt", GEORGIAN), Document("f.txt", TEXTS[0])])
    with pytest.warns(InputWarning) as told:
        assert index.search("სად არის გასაღები?", 2)[0].place.document == "g.txt"
    assert [str(one.message)[:60] for one in told] == [
        "the encoder does not know most words of the question: only w",
        "the encoder does not know most words of 2 of 2 passages: onl",
    ]
    assert all("multilingual" in str(one.message) for one in told)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.search("სად არის გასაღები?", 2)
        late = index.find("სად არის გასაღები?", SearchOptions(late=True))
        assert late.late is None and late.hits[0].place.document == "g.txt"  # vectors of its tokens are noise
    with pytest.warns(InputWarning, match="2 of 2 passages: their vectors say little.*retriever.*hybrid"):
        index.search("Who has the key?", 1, retriever="dense")


FOLDERS = {
    "de": {
        "leuchtturm.md": "Der Wärter verwahrt den Schlüssel in der Küche.",
        "fähre.md": "Sonntags ruht die Fähre. Montags fährt man ab sieben Uhr.",
    },
    "zh": {
        "灯塔.md": "看守人把钥匙放在厨房里。",
        "渡船.md": "渡船星期天休息。星期一早上七点开船。",
    },
}
QUESTIONS = {"de": ("Wer hat den Schlüssel?", "leuchtturm.md"), "zh": ("钥匙放在哪里?", "灯塔.md")}


BOTH = [("de", "xlm-roberta"), ("zh", "qwen3")]


@pytest.mark.parametrize(("language", "family"), slow_but(BOTH[1:], BOTH))
def test_a_folder_in_its_language_with_an_encoder_that_knows_it(tmp_path, monkeypatch, language, family):
    monkeypatch.chdir(tmp_path)
    texts, (question, right) = FOLDERS[language], QUESTIONS[language]
    tokenizer = {"make_tokenizer": lambda texts: unigram([*texts, *"".join(texts)])} if family == "xlm-roberta" else {}
    made = random_encoder(family, [*texts.values(), question], **tokenizer)
    save_encoder("encoder", made.config, made.params, made.tokenizer)
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)  # nothing is unknown
        build_index("i", list(texts), index_settings(model="encoder"))
        with open_index("i") as index:
            best = index.search(question, late=True)[0]
    assert best.place.document == right and best.text in texts[right]
    tokenizer = load_tokenizer("encoder")
    rows = tokenizer.encode([*texts.values(), question], 200)
    assert not (rows.tokens == tokenizer.unknown_id).any() and tokenizer.unknown_shares([*texts.values()]).max() < 0.2
