import re

import pytest

from qrag_jax.config import dump_config, load_config
from qrag_jax.eval.study.config import MAX_CONFIGS, StudyConfig, TaskConfig
from qrag_jax.types import UsageError

YAML = """
tasks:
  cran: {kind: cranfield, path: cranfield, stitch_sentences: 100}
strategies:
  fixed:
    - {strategy: fixed, max_tokens: 128}
    - {strategy: fixed, fixed: {sentences_per_chunk: 4}}
  late:
    - {strategy: late, late: {num_tokens: 64}}
"""


def load(tmp_path, text=YAML, *overrides):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return load_config(StudyConfig, path, overrides)


def test_a_file_becomes_chunk_configs(tmp_path):
    config = load(tmp_path)
    assert config.tasks["cran"].stitch_sentences == 100
    assert [chunking.max_tokens for chunking in config.strategies["fixed"]] == [128, None]
    assert config.strategies["fixed"][1].fixed.sentences_per_chunk == 4
    assert config.strategies["late"][0].late.num_tokens == 64


def test_what_was_saved_reproduces_it(tmp_path):
    config = load(tmp_path)
    (tmp_path / "saved.yaml").write_text(dump_config(config))
    assert load_config(StudyConfig, tmp_path / "saved.yaml") == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("baseline=late2", "baseline 'late2'"),
        ("ks=[5, 1]", r"ks \[5, 1\]: positive numbers, increasing"),
        ("report_k=4", "report_k 4: one of ks"),
        ("ks=[1, 3]", r"report_k 5: one of ks \[1, 3\]"),
        ("window=2", "window 2: at least 3"),
        ("tasks.cran.kind=squad", "tasks.cran: stitch_sentences: kind squad has long documents"),
        ("tasks.cran.questions=dev", "tasks.cran: questions dev: kind cranfield has its own"),
        ("tasks.cran.encoding=cp1252", "tasks.cran: encoding cp1252: kind cranfield is always UTF-8"),
        ("tasks.mine={kind: files, path: docs}", "tasks.mine: questions: a task of files needs a .jsonl"),
        ("strategies.fixed=[]", "strategies.fixed: 0 configs"),
        (
            f"strategies.fixed=[{', '.join(['{}'] * (MAX_CONFIGS + 1))}]",
            f"strategies.fixed: {MAX_CONFIGS + 1} configs: give",
        ),
        ("budgets=[500, 100]", r"budgets \[500, 100\]: numbers of tokens, at least 1, increasing"),
        ("budgets=[0]", r"budgets \[0\]: numbers"),
        ("fills=[]", r"fills \[\]: at least one of plain, widen, merge"),
        ("fills=[plain, plain]", "fills .* each once"),
        ("fills=[wide]", "fills"),
        ("tasks={}", "tasks: name at least one"),
        ('tasks={"../x": {kind: chroma, path: docs}}', "tasks: name '../x': letters"),
        ("strategies.2=[]", "strategies.2: 0 configs"),
    ],
)
def test_refusals(tmp_path, override, message):
    with pytest.raises(UsageError, match=f"^override {re.escape(override)}: {message}"):
        load(tmp_path, YAML, override, "dev_share=0.5")


def test_contexts_of_budgets_are_not_reranked(tmp_path):
    with pytest.raises(UsageError, match=r"rerank smollm2: contexts of budgets are filled without it; leave one"):
        load(tmp_path, YAML, "rerank=smollm2", "budgets=[100]")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: cranfield", "kind: squad", "study.yaml:3: tasks.cran: stitch_sentences: kind squad"),
        ("max_tokens: 128", "max_tokens: many", "study.yaml:6: strategies.fixed.0.max_tokens: expected an integer"),
        ("tasks:", "seed: -2\ntasks:", "study.yaml:2: seed -2: at least 0"),
        ("  fixed:", "  semi:", "study.yaml:4: baseline 'fixed': one of the strategies semi, late"),
    ],
)
def test_a_fault_of_the_file_has_its_line(tmp_path, old, new, message):
    with pytest.raises(UsageError, match=f"{tmp_path}/{message}"):
        load(tmp_path, YAML.replace(old, new, 1), "tasks.other={kind: chroma, path: docs}")


@pytest.mark.parametrize("kind", ["squad", "chroma", "multirc", "scisumm", "cranfield", "financebench"])
def test_questions_are_refused_where_no_reader_takes_them(kind):
    with pytest.raises(ValueError, match=f"questions dev: kind {kind} has its own; leave this field out"):
        TaskConfig(kind, "x", questions="dev")


@pytest.mark.parametrize("kind", ["files", "beir", "conditionalqa"])
def test_questions_are_taken_where_a_reader_does(kind):
    assert TaskConfig(kind, "x", questions="dev").questions == "dev"


def test_the_least_values_are_taken(tmp_path):
    config = load(tmp_path, YAML, "seed=0", "min_dev_questions=0", "window=3", "tasks.my-task.num_questions=1",
                  "tasks.my-task.kind=chroma", "tasks.my-task.path=x")  # fmt: skip
    assert (config.seed, config.min_dev_questions, config.window) == (0, 0, 3)
    assert config.tasks["my-task"].num_questions == 1


def test_a_name_that_names_no_file_is_no_override(tmp_path):
    with pytest.raises(UsageError, match=r"override 'tasks.mi/ne=\{.*': write it as field=value"):
        load(tmp_path, YAML, "tasks.mi/ne={kind: chroma, path: docs}")
