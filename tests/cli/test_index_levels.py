"""`qrag index build` of levels, and `qrag find` and `qrag ask` that search them."""

import json

import jax
import numpy as np
import pytest
from support.encoders import eager_tagger, random_encoder
from support.indices import write_notes
from support.planner_runs import save_planner

from qrag_jax.checkpoint import save_checkpoint
from qrag_jax.chunking.tree.level_ranges import NAMES, LevelRange, parse_levels
from qrag_jax.index.build import index_method, level_index
from qrag_jax.index.load import load_index
from qrag_jax.index.settings import read_settings
from qrag_jax.models.compressor import KIND, Compressor, describe_compressor, init
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.models.tagger.tagger import save_tagger
from qrag_jax.search.levels.router import Router, save_router

NOTES = """# Garden

Mary has the key of the garden. It rained all day.

John went home. Nobody saw him.
"""
PLAIN = "Mary has the key. John went home. It rained all day."
QUESTION = "Who has the key?"
LEVELS = ("--strategy", "levels")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """An encoder and another one, and a tagger, compressors and a router of the first."""
    folder = tmp_path_factory.mktemp("shelf")
    for name, texts in (("encoder", [NOTES, PLAIN]), ("other", [NOTES, "other words"])):
        loaded = random_encoder("bert", texts)
        save_encoder(folder / name, loaded.config, loaded.params, loaded.tokenizer)
    embed = make_embedder(load_encoder(str(folder / "encoder")))
    save_tagger(eager_tagger(embed), folder / "tagger.npz")
    save_tagger(eager_tagger(embed, 0.4), folder / "again.npz")
    dim = embed(["a"]).shape[1]
    for number, name in enumerate(("compressor", "compressor2")):
        params = {name: np.asarray(array) for name, array in init(jax.random.key(number), "mlp", dim, 4).items()}
        made = Compressor(params, "mlp", embed.fingerprint, "minilm")
        save_checkpoint(folder / name, 0, {KIND: params}, {}, metadata=describe_compressor(made))
    zeros = np.zeros(dim)
    ranges = (LevelRange(1, 1), LevelRange(3, 4))
    weights, bias = np.zeros((dim, 2)), np.array([0.0, 1.0])
    save_router(
        Router("vectors", NAMES, ranges, 0, 0.5, zeros, zeros + 1, weights, bias, embed.fingerprint), folder / "router"
    )
    return folder


@pytest.fixture
def qrag(tmp_path, monkeypatch, command, shelf):
    """(arguments) -> (exit code, standard output, standard error), beside a folder of notes; SHELF is replaced."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_notes("notes", a=NOTES, b=PLAIN)

    def run(*argv):
        return command(*(part.replace("SHELF", str(shelf)) for part in argv))

    return run


def build(qrag, *flags, index="i"):
    code, out, err = qrag("index", "build", index, "notes", "--model", "SHELF/encoder", *(flags or LEVELS))
    assert code == 0, err
    return out


def refused(qrag, *argv, code=2):
    found, _, err = qrag(*argv)
    assert found == code, err
    return err


@pytest.mark.slow
def test_a_tagger_finds_the_sections_of_an_index(qrag):
    build(qrag, "--points", "tagger", "--tagger", "SHELF/tagger.npz")
    corpus = load_index("i")
    plain = [corpus.texts[node] for node in corpus.nodes_of("notes/b.md")]
    assert plain == [PLAIN, "Mary has the key.", "John went home.", "It rained all day."]
    assert [corpus.nodes[node].level for node in corpus.nodes_of("notes/b.md")] == [0, 1, 1, 1]
    _, out, _ = qrag("index", "info", "i")
    assert "--strategy levels --max_tokens 200 --points tagger --parents best_child" in out
    assert qrag("index", "add", "i", "notes")[1].startswith("0 documents read, 2 unchanged")
    write_notes("notes", c="It rained. John has the key.")
    assert qrag("index", "add", "i", "notes")[1].startswith("1 document read, 2 unchanged")


@pytest.mark.slow
def test_a_hierarchy_by_the_tagger_with_workers(qrag):
    flags = ("--strategy", "hierarchy", "--points", "tagger", "--tagger", "SHELF/tagger.npz", "--max_tokens", "6")
    build(qrag, *flags)
    build(qrag, *flags, "--workers", "1", index="j")
    one, two = load_index("i"), load_index("j")
    assert one.nodes == two.nodes and len(one.nodes_of("notes/b.md")) == 4
    found = qrag("find", "notes", QUESTION, "--model", "SHELF/encoder", *flags, "--json")
    assert json.loads(found[1])["num_chunks"] == len(one.leaves), found[2]


def test_another_tagger_or_encoder_is_refused_by_name(qrag, shelf):
    build(qrag, "--tagger", "SHELF/tagger.npz")
    flags = ("--model", "SHELF/encoder", "--tagger")
    err = refused(qrag, "index", "add", "i", "notes", *flags, "SHELF/again.npz", code=1)
    assert f"made with the tagger of {shelf}/tagger.npz (" in err and f"that of {shelf}/again.npz differs" in err
    err = refused(qrag, "index", "build", "j", "notes", "--points", "tagger", "--model", "SHELF/encoder", code=1)
    assert "tagger: trained on vectors of the encoder 'minilm'" in err and "give the encoder" in err
    settings, moved = read_settings("i"), shelf / "moved.npz"
    moved.write_bytes((shelf / "tagger.npz").read_bytes())
    assert qrag("index", "add", "i", "notes", *flags, str(moved))[0] == 0
    moved.unlink()
    assert read_settings("i") == settings


def test_a_tagger_that_changed_where_it_lies_is_refused(qrag, shelf, tmp_path):
    mine = tmp_path / "mine.npz"
    mine.write_bytes((shelf / "tagger.npz").read_bytes())
    build(qrag, "--tagger", "mine.npz")
    mine.write_bytes((shelf / "again.npz").read_bytes())
    write_notes("notes", c="It rained.")
    err = refused(qrag, "index", "add", "i", "notes", code=1)
    assert "was made with the tagger of" in err and "use the original one (--tagger)" in err


def test_parents_by_a_compressor(qrag, shelf):
    build(qrag, "--parents", "compressor", "--compressor", "SHELF/compressor")
    build(qrag, "--parents", "mean", index="j")
    made, mean = load_index("i"), load_index("j")
    np.testing.assert_allclose(made.vectors[mean.leaves], mean.vectors[mean.leaves], atol=1e-6)
    np.testing.assert_allclose(made.vectors, mean.vectors, atol=1e-5)  # untrained it is the mean
    index = level_index(load_index("i"), read_settings("i"), index_method(read_settings("i")))
    assert index.names == NAMES and index.built_tokens(LevelRange(0, 0)) == int(made.num_tokens[made.leaves].sum())
    flags = ("--model", "SHELF/encoder", "--compressor", "SHELF/compressor2")
    err = refused(qrag, "index", "add", "i", "notes", *flags, code=1)
    assert "was made with the compressor of" in err and "use the original one (--compressor)" in err
    err = refused(qrag, "index", "build", "k", "notes", "--model", "SHELF/other", *flags[2:], code=1)
    assert "compressor: trained on vectors of the encoder" in err


def test_parts_are_scored_with_what_is_around_them(qrag):
    build(qrag, *LEVELS, "--parents", "mean")
    find = ("find", "i", QUESTION, "--retriever", "dense", "--json", "--top_k", "20", "--levels")
    plain, smooth = (json.loads(qrag(*find, "sentence", *more)[1]) for more in ((), ("--smooth", "0.9")))
    whole = json.loads(qrag(*find, "document")[1])

    def scores(found):
        return {hit["text"]: hit["score"] for hit in found["passages"] if hit["file"] == "notes/b.md"}

    (around,), own, mixed = scores(whole).values(), scores(plain), scores(smooth)
    assert own.keys() == mixed.keys() and len(own) > 1
    for text in own:
        assert mixed[text] == pytest.approx(0.1 * own[text] + 0.9 * around, abs=1e-5)
    assert smooth["num_vectors"] > plain["num_vectors"]
    err = refused(qrag, "find", "i", QUESTION, "--smooth", "0.5")
    assert "--smooth: works only with levels; name some too (--levels)" in err
    assert "at least 0 and below 1" in refused(qrag, *find, "sentence", "--smooth", "1")


def asked(qrag, *flags):
    code, out, err = qrag("ask", "i", QUESTION, "--no_llm", "--json", *flags)
    assert code == 0, err
    return json.loads(out), err


def test_levels_are_asked(qrag):
    build(qrag)
    answer, err = asked(qrag, "--levels", "section:paragraph")
    texts = [passage["text"] for passage in answer["context"]["passages"]]
    assert texts == [
        "# Garden\n\nMary has the key of the garden. It rained all day.",
        "John went home. Nobody saw him.",
        PLAIN,
    ]
    assert (answer["levels"], answer["planner"]) == ("section:paragraph", "constant")
    corpus = load_index("i")
    assert answer["num_vectors"] == len(corpus.leaves)  # by best child leaves are compared
    assert answer["built_tokens"] == int(corpus.num_tokens[corpus.leaves].sum())
    assert answer["sent_tokens"] == answer["context"]["num_tokens"]
    line = f"levels: section:paragraph (constant); {len(corpus.leaves)} vectors compared, "
    assert line in err and f"{answer['sent_tokens']} sent" in err
    whole, _ = asked(qrag, "--planner", "constant")
    assert whole["levels"] == "document:sentence"


def test_what_does_not_fit_is_given_by_its_best_leaves(qrag):
    build(qrag)
    whole, _ = asked(qrag, "--levels", "document")
    sizes = [passage["num_tokens"] for passage in whole["context"]["passages"]]
    overhead = (whole["sent_tokens"] - sum(sizes)) // len(sizes)
    answer, _ = asked(qrag, "--levels", "document", "--max_context_tokens", str(overhead + min(sizes) - 1))
    (passage,) = answer["context"]["passages"]
    assert answer["sent_tokens"] <= overhead + min(sizes) - 1
    text = (NOTES if passage["file"] == "notes/a.md" else PLAIN).strip()
    assert passage["text"] != text and all(line in text for line in passage["text"].split("\n"))
    assert refused(qrag, "ask", "i", QUESTION, "--no_llm", "--levels", "document", "--max_context_tokens", "2", code=1)


def test_a_router_plans(qrag, shelf):
    build(qrag)
    answer, err = asked(qrag, "--planner", "SHELF/router")
    assert (answer["levels"], answer["planner"]) == ("paragraph:sentence", f"{shelf}/router")
    assert (answer["plan_prompt_tokens"], answer["plan_completion_tokens"]) == (0, 0)
    found = json.loads(qrag("find", "i", QUESTION, "--planner", "SHELF/router", "--json")[1])
    assert found["levels"] == "paragraph:sentence" and "sent_tokens" not in found


def test_a_language_model_plans(qrag, tmp_path):
    build(qrag)
    plan = json.dumps({"trace": "short", "largest_chunk_size": "paragraph", "smallest_chunk_size": "paragraph"})
    replies = ({"answer": plan, "match": "Which sizes"}, {"answer": "Mary [1]."})
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    flags = ("--planner", "llm", "--llm", "scripted", "--llm_model", "script.jsonl", "--json")
    code, out, err = qrag("ask", "i", QUESTION, *flags)
    answer = json.loads(out)
    assert (answer["levels"], answer["planner"], answer["answer"]) == ("paragraph:paragraph", "llm", "Mary [1]."), err
    assert answer["plan_completion_tokens"] == len(plan.split())
    assert answer["cost"]["completion_tokens"] == len(plan.split()) + len("Mary [1].".split())
    (tmp_path / "script.jsonl").write_text('{"answer": "no plan"}\n')
    code, out, err = qrag("ask", "i", QUESTION, *flags)
    assert json.loads(out)["levels"] == "document:sentence"
    assert "levels: no plan (answer not readable: no answer of 2 could be used; the last one: it is not JSON" in err
    assert "--planner llm: needs a language model" in refused(
        qrag, "ask", "i", QUESTION, "--planner", "llm", "--no_llm"
    )


def test_a_model_that_was_trained_plans(qrag, shelf):
    """Random weights, but a grammar: each answer is some trace and a plan."""
    build(qrag)
    save_planner(shelf / "decoder", NAMES)
    flags = (QUESTION, "--planner", "SHELF/decoder", "--json")
    _, out, err = qrag("find", "i", *flags)
    found = json.loads(out)
    assert f"the planner read {found['plan_prompt_tokens']} tokens and wrote {found['plan_completion_tokens']}" in err
    asked = json.loads(qrag("ask", "i", *flags, "--no_llm")[1])
    parse_levels(found["levels"], NAMES)
    for told in (found, asked):
        assert (told["levels"], told["planner"]) == (found["levels"], f"{shelf}/decoder")
        assert told["plan_prompt_tokens"] > len(QUESTION) and told["plan_completion_tokens"] > len('{"":"","":""}')
    save_planner(shelf / "others", ("document", "64"))
    assert "others: trained on the levels document, 64, but the index has document, section" in refused(
        qrag, "find", "i", QUESTION, "--planner", "SHELF/others"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("find", "i", QUESTION, "--planner", "llm"), "--planner llm: needs a language model; use `qrag ask`"),
        (("ask", "i", QUESTION, "--levels", "section", "--planner", "r"), "--planner r chooses the levels"),
        (("ask", "i", QUESTION, "--planner", "r"), "--planner r: neither constant nor llm, and no such folder"),
        (("ask", "i", QUESTION, "--planner", "notes"), "notes: no checkpoint here"),
        (("find", "i", QUESTION, "--max_tokens", "8"), "--max_tokens: applies only to files; i is an index"),
        (("find", "notes", QUESTION, "--points", "rule"), "--points: works only with --strategy hierarchy or levels"),
        (
            ("index", "build", "j", "notes", "--strategy", "hierarchy", "--parents", "mean"),
            "works only with --strategy levels",
        ),
        (("index", "info", "i", "--points", "rule"), "--points: works only with build and add"),
    ],
)
def test_what_is_asked_wrongly_is_refused(qrag, argv, message):
    if "i" in argv:
        build(qrag)
    if "plain" in argv:
        build(qrag, "--strategy", "recursive", index="plain")
    assert message in refused(qrag, *argv)
