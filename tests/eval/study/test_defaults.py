"""The default strategies, and the configs of configs/study that are read with them."""

from pathlib import Path

import numpy as np
import pytest

from qrag_jax.chunking.chunker import make_chunker
from qrag_jax.config import dump_config, flatten, load_config, to_dict
from qrag_jax.eval.study.config import DEFAULT_STRATEGIES, MAX_CONFIGS, MAX_TOKENS, DefaultStudy, StudyConfig
from qrag_jax.files.strict_yaml import parse_yaml
from qrag_jax.types import Document, UsageError

ROOT = Path(__file__).parents[3]
STUDIES = sorted(path for path in (ROOT / "configs/study").glob("*.yaml") if path.name != "prices.yaml")
TASK = ("tasks.notes.kind=files", "tasks.notes.path=notes", "tasks.notes.questions=questions.jsonl")
NOUNS = "river stone cloud market window letter winter castle forest island music paper".split()
ALL = [(name, number) for name, configs in DEFAULT_STRATEGIES.items() for number in range(len(configs))]


def prose(num_sentences):
    """Paragraphs of five sentences of 20 words."""
    rng = np.random.default_rng(0)
    sentences = [f"The {' '.join(rng.choice(NOUNS, 18))} {i}." for i in range(num_sentences)]
    return "\n\n".join(" ".join(sentences[i : i + 5]) for i in range(0, num_sentences, 5))


def embed(texts):
    """Counts of nouns: sentences that share some are near."""
    counts = [[text.count(noun) for noun in NOUNS] + [1] for text in texts]
    return np.array(counts, np.float32)


def chunks_of(name, number):
    chunker = make_chunker(DEFAULT_STRATEGIES[name][number], lambda text: len(text.split()), embed)
    return chunker(Document("prose", prose(200)))


def test_the_strategies_of_the_study():
    assert list(DEFAULT_STRATEGIES) == "fixed recursive breakpoint clustering late headings document".split()
    assert {config.strategy for config in DEFAULT_STRATEGIES["clustering"]} == {"linkage", "dbscan"}
    for name, configs in DEFAULT_STRATEGIES.items():
        assert 1 <= len(configs) <= MAX_CONFIGS and len(set(configs)) == len(configs)
        assert name == "clustering" or {config.strategy for config in configs} == {name}


@pytest.mark.parametrize(("name", "number"), ALL)
def test_no_chunk_but_a_whole_document_is_longer_than_the_window(name, number):
    most = max(chunk.num_tokens for chunk in chunks_of(name, number))
    assert most == len(prose(200).split()) if name == "document" else most <= MAX_TOKENS


@pytest.mark.parametrize("name", [name for name in DEFAULT_STRATEGIES if name != "document"])
def test_the_first_config_makes_chunks_of_a_comparable_size(name):
    mean = np.mean([chunk.num_tokens for chunk in chunks_of(name, 0)])
    assert 85 <= mean <= 130


@pytest.mark.parametrize("name", [name for name, configs in DEFAULT_STRATEGIES.items() if len(configs) > 1])
def test_configs_of_a_strategy_make_other_chunks(name):
    cut = [tuple(chunk.spans for chunk in chunks_of(name, number)) for number in range(len(DEFAULT_STRATEGIES[name]))]
    assert len(set(cut)) == len(cut)


def test_a_study_of_tasks_only_has_the_default_strategies(tmp_path):
    config = load_config(DefaultStudy, None, TASK)
    assert config.strategies == DEFAULT_STRATEGIES and config.baseline == "fixed"
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_config(config))
    assert to_dict(load_config(StudyConfig, saved)) == to_dict(config)
    assert load_config(DefaultStudy, saved) == config


def test_strategies_of_a_config_replace_all_of_them(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("strategies:\n  fixed:\n    - {max_tokens: 64}\n")
    strategies = load_config(DefaultStudy, path, TASK).strategies
    assert list(strategies) == ["fixed"] and [config.max_tokens for config in strategies["fixed"]] == [64]


def test_a_baseline_that_is_no_strategy_is_refused():
    with pytest.raises(UsageError, match="baseline 'best': one of the strategies fixed, recursive"):
        load_config(DefaultStudy, None, [*TASK, "baseline=best"])


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_a_config_loads_and_says_what_it_sets(path):
    config = load_config(DefaultStudy, path)
    given = parse_yaml(path.read_text(), str(path))
    assert isinstance(given, dict)
    for name, configs in given.pop("strategies", {}).items():
        for one, made in zip(configs, config.strategies[name], strict=True):
            assert flatten(one).items() <= flatten(to_dict(made)).items()
    assert flatten(given).items() <= flatten(to_dict(config)).items()
