"""Ranking measures and TREC files against ir_measures, which runs trec_eval's own code."""

import random

import pytest

from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.retrieval.records import QueryRecord
from qrag_jax.eval.retrieval.trec_files import write_trec
from qrag_jax.eval.setting import Setting
from qrag_jax.measures.trec import ndcg, read_qrels, read_run, score_run, write_qrels, write_run
from qrag_jax.qrag.tasks import corpus_task
from qrag_jax.types import Document

pytestmark = pytest.mark.oracle

KS = (1, 3, 5, 10, 50)
IDS = [*(f"d{i}" for i in range(35)), "D1", "10", "9", "é", "日本", "\U0001f600", "\uffff", "a-b", "a_b", "a.b"]


def measures():
    """Name in trec_eval -> measure of ir_measures."""
    import ir_measures as ir

    named = {"map": ir.AP, "recip_rank": ir.RR, "ndcg": ir.nDCG}
    for k in KS:
        named |= {f"P_{k}": ir.P @ k, f"recall_{k}": ir.R @ k, f"ndcg_cut_{k}": ir.nDCG @ k}
    return named


def random_case(seed, ids=IDS):
    """Graded judgements with 0 and -1, and scores of few values, some apart by less than a 32-bit float sees."""
    rnd = random.Random(seed)
    qrels, run = {}, {}
    for number in range(12):
        judged = rnd.sample(ids, rnd.randint(1, 20))
        qrels[f"q{number}"] = {document: rnd.choice([-1, 0, 0, 1, 1, 2, 3]) for document in judged}
        found = rnd.sample(ids, rnd.randint(1, len(ids)))
        run[f"q{number}"] = {d: rnd.randint(-3, 3) / 4 + rnd.choice([0.0, 0.0, 1e-9, 1e-5]) for d in found}
    qrels["irrelevant"] = dict.fromkeys(ids[:3], 0)
    run["irrelevant"] = {ids[0]: 1.0}
    qrels["silent"] = {ids[0]: 1}  # judged, but not in the run
    run["unjudged"] = {ids[0]: 1.0}  # in the run, but not judged
    return qrels, run


def check(ours, qrels, run):
    import ir_measures as ir

    named = measures()
    theirs = {(value.query_id, value.measure): value.value for value in ir.iter_calc(list(named.values()), qrels, run)}
    for query, row in ours.items():
        for name, value in row.items():
            assert value == pytest.approx(theirs[query, named[name]], abs=1e-9), (query, name)
    assert {query for query, _ in theirs} == set(ours)
    means = ir.calc_aggregate(list(named.values()), qrels, run)
    for name, measure in named.items():
        assert sum(row[name] for row in ours.values()) / len(ours) == pytest.approx(means[measure], abs=1e-9), name


@pytest.mark.parametrize("seed", range(25))
def test_random_runs_with_ties(seed):
    qrels, run = random_case(seed)
    check(score_run(run, qrels, KS), qrels, run)


@pytest.mark.parametrize("seed", range(3))
def test_files_are_read_alike(tmp_path, seed):
    """Our files, ids with blanks among them, read by ir_measures: the encoded ids are its ids, the scores are the same.

    Ties aside: they are broken by the id, and encoding changes the order of those.
    """
    import ir_measures as ir

    qrels, run = random_case(seed, [*IDS, "Paris (city)", "50 %", "a\u3000b", "#1"])
    places = {query: {d: score + 2 * i for i, (d, score) in enumerate(row.items())} for query, row in run.items()}
    write_qrels(tmp_path / "qrels", qrels)
    write_run(tmp_path / "run", places, "ours")
    theirs = ir.read_trec_qrels(str(tmp_path / "qrels")), ir.read_trec_run(str(tmp_path / "run"))
    ours = score_run(read_run(tmp_path / "run"), read_qrels(tmp_path / "qrels"), KS)
    assert ours == score_run(places, qrels, KS)
    check(ours, *(list(rows) for rows in theirs))


@pytest.mark.parametrize("seed", range(3))
def test_picks_of_an_evaluation_are_ranked_alike(tmp_path, seed):
    """Ties, values that rise, and ids with blanks: every tool ranks the documents as they were picked."""
    import ir_measures as ir

    rnd = random.Random(seed)
    names = [*IDS, "Paris (city)", "50 %", "#1"]
    documents = tuple(Document(name, f"text of {name}") for name in names)
    judged = {f"q{n}": {name: rnd.choice([1, 1, 2, 3]) for name in rnd.sample(names, 6)} for n in range(12)}
    questions = tuple(StudyQuestion(query, "?", tuple(own)) for query, own in judged.items())
    task = corpus_task(StudyTask("set", "documents", documents, questions), judged)
    setting, records, picked = (
        Setting(method="trained", mode="none", positions="none", seed=0, num_chunks=len(names)),
        [],
        {},
    )
    for query, own in judged.items():
        chosen = tuple(rnd.sample(range(len(names)), 20))
        gold = tuple(names.index(name) for name in own)
        values = tuple(rnd.choice([0.0, 0.5, 0.5, 1.0]) for _ in chosen)
        records.append(QueryRecord(query, "?", setting, chosen, values, gold, 0.0, 0.0))
        picked[query] = [names[i] for i in chosen]
    write_trec(tmp_path, task, records)
    qrels, run = tmp_path / f"set_{len(names)}.qrels", tmp_path / f"set_{len(names)}.trained.fixed.run"
    ours = score_run(read_run(run), read_qrels(qrels), KS)
    assert {query: row["ndcg_cut_10"] for query, row in ours.items()} == {
        query: ndcg(picked[query], own, 10) for query, own in judged.items()
    }
    check(ours, list(ir.read_trec_qrels(str(qrels))), list(ir.read_trec_run(str(run))))
