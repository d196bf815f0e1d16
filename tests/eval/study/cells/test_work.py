from support.study import make_config, make_tasks

from qrag_jax.eval.study.cells.cell_files import CellStore
from qrag_jax.eval.study.cells.work import STAGE, Sides, Work
from qrag_jax.eval.study.load_tasks import split_task


def make_sides(config, min_dev=4):
    found = []
    for task in make_tasks():
        how = config.tasks[task.name]
        dev, test = split_task(task, how, config.dev_share, min_dev, config.seed)
        found.append(Sides(dev, test, how.split == "questions"))
    return found


def characters(task):
    return sum(len(document.text) for document in task.documents)


def test_by_hand(tmp_path):
    """Five passes over the shared corpus, one of them with its sentences; the other task has each side for itself."""
    config, seen = make_config(), []
    shared, apart = make_sides(config)
    work = Work(config, [shared, apart], CellStore(tmp_path), lambda *one: seen.append(one))
    assert seen == [(STAGE, 0, 6 * characters(shared.test) + 6 * characters(apart.dev) + 4 * characters(apart.test))]
    of = seen[0][2]
    first = work.begin(shared, "fixed", 0, "dev")
    first(0.5)
    first(1.0)
    work.begin(shared, "breakpoint", 0, "dev")(0.5)
    work.begin(apart, "fixed", 1, "test")(1.0)
    one = characters(shared.test)
    assert [done for _, done, _ in seen[1:]] == [round(0.5 * one), one, 2 * one, 3 * one + characters(apart.test)]
    work.begin(apart, "fixed", 0, "test")(1.0)  # again, as its file was damaged
    assert seen[-1] == seen[-2]
    work.finish()
    assert seen[-1] == (STAGE, of, of)


def test_without_dev_a_strategy_has_one_pass(tmp_path):
    config, seen = make_config(), []
    sides = make_sides(config, min_dev=100)
    work = Work(config, sides, CellStore(tmp_path), lambda *one: seen.append(one))
    assert seen == [(STAGE, 0, 4 * sum(characters(side.test) for side in sides))]
    for side in sides:
        for strategy in config.strategies:
            work.begin(side, strategy, 0, "test")(1.0)
    assert seen[-1][1] == seen[0][2]


def test_what_is_stored_is_done_from_the_start(tmp_path):
    config, seen, store = make_config(), [], CellStore(tmp_path)
    shared, apart = make_sides(config)
    for task, number, part in (("facts", 1, "dev"), ("facts", 1, "test"), ("pages", 1, "test")):
        store.path(task, "fixed", number, part).parent.mkdir(parents=True, exist_ok=True)
        store.path(task, "fixed", number, part).write_text("")
    Work(config, [shared, apart], store, lambda *one: seen.append(one))
    assert seen[0][1] == characters(shared.test) + characters(apart.test)
    Work(config, [shared, apart], store, None).finish()
