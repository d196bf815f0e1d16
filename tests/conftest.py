"""Set-up of every test run: 8 virtual CPU devices, no hub, shapes and types of qrag_jax checked at every call.

All of it happens before jax or qrag_jax is imported. `QRAG_JAX_TYPECHECK=0` switches the checks off, for speed or to
read a traceback.
"""

import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "guarded"))  # here, and in processes that tests start
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))

import network_guard
from support.compiling import compiled_folder, fast_flags, give_back
from support.tiers import register_profiles

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of llama.cpp that have no core make each other wait
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # xdist forks after tokenizers has started threads
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    given = os.environ.get("XLA_FLAGS", "")  # behind ours: the last one counts
    os.environ["XLA_FLAGS"] = " ".join([*fast_flags(), "--xla_force_host_platform_device_count=8", given]).strip()
# Tests that write wait for the disk, where there is no memory to write to, longer than for anything that they do.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
# One of a run's processes says where compiled programs are kept; workers have its environment.
if "QRAG_JAX_TESTS_COMPILED" not in os.environ:
    os.environ["QRAG_JAX_TESTS_COMPILED"] = str(compiled_folder())
# Processes that tests start take programs from there, and put none: one that is killed would leave half an entry.
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["QRAG_JAX_TESTS_COMPILED"]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1e9"

if os.environ.get("QRAG_JAX_TYPECHECK", "1") != "0":
    from support import shape_checks

    shape_checks.install()

import jax
import pytest

os.environ[network_guard.LOG] = os.path.join(tempfile.gettempdir(), f"qrag-tests-network-{os.getpid()}")
network_guard.asked()  # of a process that had this number
network_guard.install()

# Half an entry, of a run of tests that was killed, is compiled anew.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
register_profiles()
# Tracing makes much short-lived garbage, and little of it in cycles: look for those less often.
gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item):
    """No test asks for another machine, also not one that expects it to fail, nor a process that it starts."""
    try:
        return (yield)
    finally:
        if found := network_guard.asked():
            pytest.fail(f"asked for another machine than this: {'; '.join(found[:5])}")


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """A worker that has grown gives memory back between two modules."""
    yield
    give_back()


@pytest.fixture
def strict_promotion():
    """Mixing dtypes is an error. In tests of maths: `pytestmark = pytest.mark.usefixtures("strict_promotion")`."""
    with jax.numpy_dtype_promotion("strict"):
        yield


def pytest_collection_finish():
    """What was imported is never garbage: collections, those at the end of a run too, need not look at it."""
    gc.freeze()
