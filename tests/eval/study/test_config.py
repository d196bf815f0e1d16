import pytest

from qrag_jax.config import dump_config, load_config
from qrag_jax.eval.study.config import MOST_CONFIGS, StudyConfig
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
        ("ks=[5, 1]", "increasing"),
        ("report_k=4", "report_k 4: one of ks"),
        ("dev_share=1.0", "dev_share 1.0"),
        ("tasks.cran.num_questions=0", "num_questions 0: a positive number"),
        ("tasks.cran.kind=squad", "stitch_sentences: squad has long documents"),
        ("tasks.mine={kind: files, path: docs}", "a task of files needs a .jsonl"),
        ("tasks.mi/ne={kind: chroma, path: docs}", "write it as field=value"),
        ("strategies.fixed=[]", "strategies.fixed: 0 configs"),
        (f"strategies.fixed=[{', '.join(['{}'] * (MOST_CONFIGS + 1))}]", f"{MOST_CONFIGS + 1} configs: give 1 to 6"),
        ("tasks={}", "tasks: name at least one"),
        ('tasks={"../x": {kind: chroma, path: docs}}', "name '../x': letters"),
    ],
)
def test_refusals(tmp_path, override, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, YAML, override)
