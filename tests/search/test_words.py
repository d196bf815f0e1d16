"""Words of search: what readers write in several ways or leave out, and identifiers beside near misses."""

import hashlib
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.chunking.text.words import TOKENS_VERSION, asked_words, bm25_tokens
from qrag_jax.search.bm25 import Bm25Index

FILL = ["The ferry rests on Sunday.", "The rope is ten metres long.", "Nobody came.", "The lamp went out at 7."]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Mary took the milk.", ["mary", "took", "the", "milk"]),
        ("v2.3.1", ["v2", "3", "1", "2", "v2.3.1", "2.3.1"]),
        ("maxTokens", ["maxtokens", "maxTokens", "max", "tokens"]),
        ("C++ and C#", ["c", "and", "c", "c++", "c#"]),
        ("don't", ["don", "t", "dont"]),
        ("Mary's", ["mary", "s"]),  # a possessive is no word of its own
        ("l'eau", ["l", "eau"]),
        ("1,000", ["1", "000", "1,000", "1000"]),
        ("10\u2076 of 3\u00bd", ["10", "6", "of", "3", "1", "2", "10^6", "1/2"]),
        ("café", ["café", "cafe"]),
        ("我用C++写", ["我", "用", "c", "写", "c++"]),
        ("the 🔑", ["the", "🔑"]),
        ("PDFs", ["pdfs", "pdf"]),
        ("... --- !", []),
        ("", []),
    ],
)
def test_tokens_by_hand(text, tokens):
    assert bm25_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("har\u00adbour\u00admas\u00adter", "harbourmaster"),
        ("har\u200bbour\u2060mas\ufeffter", "harbourmaster"),
        ("\u2067harbourmaster\u2069", "harbourmaster"),
        ("الحَارِسُ", "الحارس"),
        ("الحـــارس", "الحارس"),
        ("أحمد في المدرسة", "احمد المدرسه"),
        ("می\u200cخواهم", "میخواهم"),
        ("كتاب", "کتاب"),
        ("سنة ١٩١١", "1911"),
        ("১৯১১", "1911"),
        ("İstanbul", "istanbul"),
        ("ISTANBUL", "İstanbul"),
        ("ığdır", "IĞDIR"),
        ("שָׁלוֹם", "שלום"),
        ('צה"ל', "צה״ל"),
        ("Ёлка", "елка"),
        ("за\u0301мок", "замок"),
        ("м'яч", "м’яч"),
        ("м\u02bcяч", "мяч"),
        ("ΑΘΗΝΑ", "Αθήνα"),
        ("ἄνθρωπος", "άνθρωπος"),
        ("élève", "eleve"),
        ("ELEVE", "élève"),
        ("Schlüssel", "Schluessel"),
        ("Straße", "STRASSE"),
        ("Ærø", "Aeroe"),
        ("ज़मीन", "जमीन"),
        ("ന്\u200d", "ൻ"),
        ("co\u2010operate", "cooperate"),
        ("e-mail", "email"),
        ("O’Brien", "O'Brien"),
        ("OBrien", "O’Brien"),
        ("U.S.A.", "USA"),
        ("ｆｅｒｒｙ ﬁre", "ferry fire"),
        ("1\u202f000 kg", "1000"),
        ("10km", "10 km"),
        ("max_tokens", "maxTokens"),
        ("♠ 🔑\ufe0f", "🔑"),
    ],
)
def test_a_word_is_found_however_it_is_written(text, question):
    index = Bm25Index([*FILL, f"Here it is: {text}."])
    scores = index.scores(question)
    assert scores.argmax() == len(FILL) and scores[-1] > 0


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("v2.3.1", ["v2.3.10", "v1.3.2", "v3.2.1"]),
        ("max_tokens", ["tokens_max", "max_tokens_total", "max tokens"]),
        ("maxTokens", ["tokensMax", "MaxTokens", "max_tokens"]),
        ("C++", ["C", "C#", "C--"]),
        ("C#", ["C++", "C", "F#"]),
        ("ERR_1234", ["ERR_4321", "WARN_1234", "ERR_12345"]),
        ("foo.bar()", ["bar.foo()", "foo_bar()", "foo.baz()"]),
        ("--flag-name", ["--name-flag", "--flag-names", "flag name"]),
        ("10^6", ["6^10", "10^5", "106"]),
        ("3.14", ["14.3", "3.41", "314"]),
        ("1,000", ["10,000", "1,001", "1, 000"]),
        ("10.0.0.1", ["1.0.0.10", "10.0.1.0", "10.0.0.11"]),
        ("2024-03-05", ["2024-05-03", "2025-03-04", "05-2024-03"]),
        ("a.smith@example.org", ["smith.a@example.org", "a.smith@example.com", "b.smith@example.org"]),
        ("src/io/read.py", ["io/src/read.py", "src/io/read.pyi", "src/read/io.py"]),
        ("-5", ["5", "15", "+5"]),
        ("5%", ["5", "50%", "15%"]),
    ],
)
def test_the_exact_identifier_is_first(asked, near):
    index = Bm25Index([*FILL, *(f"The notes speak of {name} at length." for name in (*near, asked))])
    scores = index.scores(f"What is {asked}?")
    assert scores.argmax() == len(scores) - 1 and np.count_nonzero(scores == scores.max()) == 1


def test_forms_of_identifiers_that_no_text_has_do_not_lower_the_words():
    index = Bm25Index(["a lamp", "the max", "the rope"])
    assert index.shares("the v9.9.9 max").tolist() == index.shares("the v9 9 9 max").tolist()


def test_spellings_share_one_word():
    assert asked_words("clé porte", {"cle", "porte"}) == {"cle": 1.0, "porte": 1.0}
    assert asked_words("clé", {"cle", "clé"}) == {"clé": 0.5, "cle": 0.5}
    assert asked_words("clé", set()) == {"clé": 1.0}


_PIECES = st.sampled_from("aZ9é_ -'’.“\u0301漢कि\u0130ßﬁＡ٣²Ⅻ\u200dที่C+#()~/½🔑?\u00a0") | st.characters()


@examples(200)
@given(st.text(_PIECES, max_size=14))
def test_index_and_question_agree(text):
    tokens = bm25_tokens(text)
    assert set(asked_words(text, dict.fromkeys(tokens))) <= set(tokens)
    assert set(bm25_tokens(unicodedata.normalize("NFD", text))) == set(bm25_tokens(unicodedata.normalize("NFC", text)))


@pytest.mark.parametrize("part", ["a-", "a'", "1,", "aB", "+", "--a", "v2.", "é-", "漢", "()", "C++"])
def test_tokens_of_long_runs_take_linear_time(part):
    assert len(bm25_tokens(part * 20_000)) <= 80_000


def test_tokens_change_only_with_their_version():
    """Indexes keep counts of tokens: raise the version with each change, and then the digest here."""
    texts = [
        "v2.3.1 of maxTokens in C++ isn't e-mail 1,000 10km",
        "Straße café l'eau PDFs __init__",
        "我用C++写 नमस्ते 한국어 🔑",
    ]
    tokens = "\n".join(" ".join(bm25_tokens(text)) for text in texts)
    assert (TOKENS_VERSION, hashlib.sha256(tokens.encode()).hexdigest()[:16]) == (1, "2216e7b719cc59ec")
