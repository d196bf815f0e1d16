import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.passages import count as words

from qrag_jax.annotate.made_questions import KINDS, MakingConfig, make_questions, near_words
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.text.proper_names import find_words
from qrag_jax.types import Document, UsageError

ROOT = Path(__file__).parents[2]


def pages(*texts):
    """(title, text): a document of one chunk each, and vectors that are all different."""
    documents = [Document(str(i), text, {"title": title}) for i, (title, text) in enumerate(texts)]
    chunks = [make_chunk(document, [(0, len(document.text))], 1, words) for document in documents]
    return documents, chunks, np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float32)


PEOPLE = [
    ("Red River", "The western Red River was directed by Howard Hawks near Tucson. Filming began during summer."),
    ("Howard Hawks", "Hawks grew up beside orchards around Goshen Falls. Critics admired his quick dialogue."),
    ("Goshen Falls", "Goshen Falls manufactures furniture and bicycles. Trains reach it daily."),
    ("Blue Lake", "The landscape Blue Lake was painted by Mary Cook abroad. Museums borrowed it twice."),
    ("Mary Cook", "Cook studied engraving before moving towards Leeds Bridge. Collectors bought her prints."),
    ("Leeds Bridge", "Leeds Bridge crosses a river between mills. Engineers rebuilt it later."),
    ("Notes", "Set max_parallel_jobs before starting the worker pool here. Restart afterwards."),
    ("Limits", "The ceiling max_parallel_jobs defaults to eight threads. Memory also matters there."),
]


def made_of(*texts, embed=None, **config):
    documents, chunks, vectors = pages(*texts)
    return make_questions(documents, chunks, vectors, MakingConfig(**config), embed)


def of_kind(made, kind):
    return [one for one in made.questions if one.kind == kind]


def test_a_title_that_tells_the_hidden_name_is_left_out():
    told = (
        ("Ann Lee Street", "Ann Lee Street honours the painter Ann Lee of Rome with a long row of limes."),
        ("Ann Lee", "Lee painted harbours in winter light. Critics praised her quiet colours everywhere."),
    )
    for seed in range(10):
        made = made_of(*told, *PEOPLE, seed=seed, of_chunk=9)
        asked = [one for one in made.questions if one.kind in ("bridge", "chain", "double") and set(one.gold) >= {0, 1}]
        assert all({"ann", "lee"}.isdisjoint(one.text.lower().split()) for one in asked)


def test_a_bridge_hides_the_shared_name_and_needs_both_passages():
    made = made_of(*PEOPLE, of_chunk=9)
    gold = {one.gold for one in of_kind(made, "bridge")}
    assert {(0, 1), (1, 2), (3, 4), (4, 5)} == gold
    asked = [one for seed in range(20) for one in of_kind(made_of(*PEOPLE, of_chunk=9, seed=seed), "bridge")]
    assert all({"hawks", "howard"}.isdisjoint(one.text.lower().split()) for one in asked if one.gold == (0, 1))
    assert any("Red River" in one.text for one in asked)


def test_chains_identifiers_comparisons_doubles_and_single_sentences():
    """With draws of several seeds: a draft of too few words is left out."""
    found = {kind: set() for kind in KINDS}
    for seed in range(12):
        for one in made_of(*PEOPLE, of_chunk=9, seed=seed).questions:
            found[one.kind].add(one.gold)
    assert found["chain"] == {(0, 1, 2), (3, 4, 5)}
    assert {tuple(sorted(gold)) for gold in found["shared"]} >= {(6, 7)}  # max_parallel_jobs
    assert all(len(set(gold)) == 2 for gold in found["comparison"]) and found["comparison"]
    assert all(len(set(gold)) == 4 for gold in found["double"]) and found["double"]
    assert {gold for gold in found["single"]} == {(i,) for i in range(8)}


def test_equal_arguments_give_equal_questions_and_no_words_twice():
    first, second, other = made_of(*PEOPLE), made_of(*PEOPLE), made_of(*PEOPLE, seed=1)
    assert first == second != other
    keys = [tuple(sorted(one.text.casefold().split())) for one in first.questions]
    assert len(set(keys)) == len(keys)
    assert all(len(one.text.split()) >= 4 for one in first.questions)


def test_questions_do_not_depend_on_the_process():
    """Sets of words have another order in each process."""
    script = (
        "import sys; sys.path[:0] = ['tests/annotate', 'tests']; from test_made_questions import *\n"
        "embed = lambda texts: np.array([[len(t), ord(t[0]), ord(t[-1])] for t in texts], np.float32)\n"
        "print(made_of(*PEOPLE, embed=embed))"
    )
    call = [sys.executable, "-c", script]
    runs = [
        subprocess.run(call, env=os.environ | {"PYTHONHASHSEED": seed}, cwd=ROOT, capture_output=True, text=True)
        for seed in "12"
    ]
    assert runs[0].stdout == runs[1].stdout != "", runs[0].stderr


def test_numbers_are_limited_and_the_rest_is_counted():
    made = made_of(*PEOPLE, most=1, of_chunk=1)
    assert made.kinds["bridge"] == 2 and all(made.kinds[kind] <= 1 for kind in made.kinds if kind != "bridge")
    assert sum(made_of(*PEOPLE, of_chunk=1).left_out.values()) > 0
    with pytest.raises(UsageError, match="most"):
        MakingConfig(most=0)


def test_passages_that_share_nothing_give_single_sentences_only():
    made = made_of(
        ("", "rain fell on the quiet valley all night long."), ("", "bread rises when yeast meets warm flour.")
    )
    assert set(made.kinds) <= {"single"} and made.questions


def test_a_script_without_blanks_keeps_runs_of_characters():
    made = made_of(
        ("", "老公又动手了，我想去法院申请保护令，最快多久能下来。"),
        ("", "失业保险金最多可以领取二十四个月，由社会保险经办机构发放。"),
    )
    assert all(len(piece) > 1 for one in made.questions for piece in one.text.split()[:1])


def test_near_words_are_the_nearest_by_their_vectors():
    """Eight words at angles 0, 10, ...: the six nearest of the first are all but the last."""
    names = [f"word{chr(97 + i)}" for i in range(8)]
    angles = {name: np.radians(10 * i) for i, name in enumerate(names)}
    near = near_words(
        names, lambda texts: np.array([[np.cos(angles[t]), np.sin(angles[t])] for t in texts], np.float32)
    )
    assert set(near[names[0]]) == set(names[1:7]) and names[0] not in near[names[0]]
    assert near_words(names[:6], lambda texts: 1 / 0) == {}


def test_other_words_stand_in_questions_but_never_in_the_place_of_names():
    known = {}

    def embed(texts):
        for text in texts:
            known.setdefault(text, len(known))
        return np.random.default_rng(1).normal(size=(len(texts), 16)).astype(np.float32)

    plain = {word.text for _, text in PEOPLE for word in find_words(text)}
    made = made_of(*PEOPLE, embed=embed)
    assert known and all(word in plain for word in known)
    assert made != made_of(*PEOPLE)
    titles = {word for title, _ in PEOPLE for word in title.lower().split()}
    bridges = [one for one in of_kind(made, "bridge") if one.gold == (0, 1)]
    assert all(titles & set(one.text.lower().split()) for one in bridges)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_question_is_made_of_its_passages_and_their_titles(monkeypatch, replaced):
    """Without words of other sentences; near words take the place of lower-case words only."""
    module = "qrag_jax.annotate.made_questions"
    monkeypatch.setattr(f"{module}._FOREIGN", (0.0, 0.0))
    for name in ("_OTHER", "_OTHER_OF_SINGLE"):
        monkeypatch.setattr(f"{module}.{name}", (1.0, 1.0))

    def embed(texts):
        return np.random.default_rng(1).normal(size=(len(texts), 16)).astype(np.float32)

    own = [{word.text for word in find_words(f"{title} {text}")} for title, text in PEOPLE]
    titles = {word.text for title, _ in PEOPLE for word in find_words(title)}
    strange, names = 0, set()
    for seed in range(5):
        for one in made_of(*PEOPLE, embed=embed if replaced else None, seed=seed).questions:
            known = set().union(*(own[place] for place in one.gold))
            words = find_words(one.text)[1:]  # the first one has a capital in any case
            assert all(word.text in known for word in words if word.is_capital or not replaced)
            strange += sum(word.text not in known for word in words)
            names |= {word.text for word in words if word.is_capital} - titles
    assert {"tucson", "engineers"} <= names  # in sentences, and no titles
    assert (strange > 5) == replaced
