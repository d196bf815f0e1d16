"""What a decoder takes, and what a machine has, by files as Linux writes them."""

import jax
import pytest
from support.decoders import FAMILIES, decoder_config, random_decoder_params
from support.talkers import tiny_talker

from qrag_jax.models.decoder.causal_lm import join_projections
from qrag_jax.models.decoder.memory import (
    available_bytes,
    cache_bytes,
    check_memory,
    loading_bytes,
    num_parameters,
    resident_bytes,
)
from qrag_jax.models.decoder.weights import load_decoder, load_decoder_config, save_decoder
from qrag_jax.types import UsageError

GB = 10**9


def bytes_of(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_network(family):
    config = decoder_config(family, num_layers=3)
    params = random_decoder_params(config)
    assert 4 * num_parameters(config) == bytes_of(params)
    joined = join_projections(params)
    new = [leaf for name, layer in joined.items() if name.startswith("layer_")
           for part, leaf in layer.items() if part in ("query_key_value", "gate_up")]  # fmt: skip
    assert loading_bytes(config, "float32") == bytes_of(params) + bytes_of(new)
    assert loading_bytes(config, "bfloat16") == loading_bytes(config, "float32") // 2


def test_cache_by_hand():
    # keys and values of 2 layers, 2 heads of 4 numbers
    assert cache_bytes(decoder_config(), 3, 128, "float32") == 2 * 2 * 2 * 4 * 4 * 3 * 128


def machine(root, available_kb=4_000_000, cgroup="", **files):
    """A root with what Linux tells; names of files have __ for a slash."""
    contents = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:  {available_kb} kB\n", "proc/self/cgroup": cgroup}
    for name, content in (contents | {f"sys/fs/cgroup/{k.replace('__', '/')}": v for k, v in files.items()}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_machine_without_limits(tmp_path):
    assert available_bytes(tmp_path) is None and resident_bytes(tmp_path) is None
    assert available_bytes(machine(tmp_path)) == 4_000_000 * 1024


def test_the_tightest_control_group_decides(tmp_path):
    """Version 2: one without a limit, and one around it; what is cached there is free."""
    stat = "anon 5\ninactive_file 300\nactive_file 200\nfile 9\n"
    files = {"box__memory.max": "2000\n", "box__memory.current": "1200\n", "box__memory.stat": stat}
    inner = {"box__inner__memory.max": "max\n", "box__inner__memory.current": "700\n"}
    assert available_bytes(machine(tmp_path, 4000, "0::/box/inner\n", **files, **inner)) == 2000 - 1200 + 500


def test_a_control_group_of_version_1(tmp_path):
    stat = "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20\n"
    names = ("limit_in_bytes", "usage_in_bytes", "stat")
    files = {f"memory__memory.{name}": text for name, text in zip(names, ("900", "600", stat), strict=True)}
    # Seen from inside of a container the path is one of the machine, which is not there: the top is its own group.
    cgroup = "3:cpuset:/\n4:cpu,memory:/docker/abc\n0::/\n"
    assert available_bytes(machine(tmp_path, 4000, cgroup, **files)) == 900 - 600 + 50


def test_a_group_that_is_full_leaves_nothing(tmp_path):
    files = {"memory.max": "100", "memory.current": "130"}
    assert available_bytes(machine(tmp_path, 4000, "0::/\n", **files)) == 0


def test_memory_of_a_process(tmp_path):
    path = tmp_path / "proc/self/status"
    path.parent.mkdir(parents=True)
    path.write_text("Name:\tx\nVmPeak:\t 90 kB\nVmHWM:\t   70 kB\nVmRSS:\t   50 kB\n")
    assert resident_bytes(tmp_path) == (50 * 1024, 70 * 1024)
    now = resident_bytes()
    assert now is None or 0 < now[0] <= now[1]


@pytest.fixture
def has(monkeypatch):
    return lambda number: monkeypatch.setattr("qrag_jax.models.decoder.memory.available_bytes", lambda: number)


def test_what_does_not_fit_is_refused_with_what_would(has):
    config = decoder_config(vocab_size=10**6, hidden_size=1000, num_layers=1, intermediate_size=1, head_dim=2)
    number, loading = num_parameters(config), loading_bytes(config, "float32")
    assert loading == pytest.approx(4 * GB, rel=0.01) and number == pytest.approx(GB, rel=0.01)
    has(loading + 5)
    check_memory(config, "big", "float32", 5)
    with pytest.raises(UsageError, match=r"'big'.* 1,0\d\d million .* 4.0\d GB .*float32 and 0.00 GB of cache"):
        check_memory(config, "big", "float32", 6)
    has(2 * GB)
    with pytest.raises(
        UsageError, match=r"2.00 GB of memory are available: a model that fits has at most (499|500) million"
    ):
        check_memory(config, "big", "float32")
    has(None)
    check_memory(config, "big", "float32")


def test_nothing_is_read_of_a_model_beyond_memory(has, tmp_path, monkeypatch):
    talker = tiny_talker()
    save_decoder(tmp_path, talker.config, talker.params, talker.tokenizer)
    assert load_decoder_config(tmp_path) == load_decoder(tmp_path).config
    has(loading_bytes(talker.config, "float32") - 1)
    monkeypatch.setattr("qrag_jax.models.decoder.weights.decoder_params_from_tensors", lambda *what: pytest.fail())
    with pytest.raises(UsageError, match="of memory are available"):
        load_decoder(tmp_path)
