"""What a decoder takes, and what a machine has, by files as Linux writes them."""

import jax
import pytest
from support.decoders import FAMILIES, decoder_config, random_decoder_params
from support.talkers import tiny_talker

from qrag_jax.models.decoder.weights import check_memory, load_decoder, num_parameters, save_decoder
from qrag_jax.models.weights.machine import available_bytes
from qrag_jax.types import UsageError

GB = 10**9


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_network(family):
    config = decoder_config(family, num_layers=3)
    assert num_parameters(config) == sum(leaf.size for leaf in jax.tree.leaves(random_decoder_params(config)))


def machine(root, available_kb=4_000_000, cgroup="", **files):
    """A root with what Linux tells; names of files have __ for a slash."""
    contents = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:  {available_kb} kB\n", "proc/self/cgroup": cgroup}
    for name, content in (contents | {f"sys/fs/cgroup/{k.replace('__', '/')}": v for k, v in files.items()}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_machine_without_limits(tmp_path):
    assert available_bytes(tmp_path) is None
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


@pytest.fixture
def has(monkeypatch):
    return lambda number: monkeypatch.setattr("qrag_jax.models.decoder.weights.available_bytes", lambda: number)


def test_what_does_not_fit_is_refused_with_what_would(has):
    config = decoder_config(vocab_size=10**6, hidden_size=1000, num_layers=1, intermediate_size=1, head_dim=2)
    number = num_parameters(config)
    assert number == pytest.approx(GB, rel=0.01)
    has(2 * number)
    check_memory(config, "big", "bfloat16")
    with pytest.raises(
        UsageError,
        match=r"'big'.* 1,0\d\d million .* 4.0\d GB as float32, and 2.0\d GB of memory are available: .* 50\d million",
    ):
        check_memory(config, "big", "float32")
    has(None)
    check_memory(config, "big", "float32")


def test_nothing_is_read_of_a_model_beyond_memory(has, tmp_path, monkeypatch):
    talker = tiny_talker()
    save_decoder(tmp_path, talker)
    has(4 * num_parameters(talker.config) - 1)
    monkeypatch.setattr("qrag_jax.models.decoder.weights.decoder_params_from_tensors", lambda *what: pytest.fail())
    with pytest.raises(UsageError, match="of memory are available"):
        load_decoder(tmp_path)
