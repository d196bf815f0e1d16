"""Set-up of every test run: 8 virtual CPU devices, no hub, shapes and types of qrag_jax checked at every call.

All of it happens before jax or qrag_jax is imported. `QRAG_JAX_TYPECHECK=0` switches the checks off, for speed or to
read a traceback.
"""

import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # xdist forks after tokenizers has started threads
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

if os.environ.get("QRAG_JAX_TYPECHECK", "1") != "0":
    import jaxtyping

    jaxtyping.install_import_hook("qrag_jax", "shape_checks.check_functions")

import hypothesis
import jax
import pytest

# What one worker of a run has compiled, the other need not. Subprocesses, which some tests kill, have no part in it.
if "PYTEST_XDIST_WORKER" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="qrag_jax_tests_")
    os.environ["QRAG_JAX_TESTS_COMPILED"] = COMPILED.name
jax.config.update("jax_compilation_cache_dir", os.environ["QRAG_JAX_TESTS_COMPILED"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

# No deadline: a test never asserts times. Derandomized: a red run can be repeated.
hypothesis.settings.register_profile("qrag_jax", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("qrag_jax")


@pytest.fixture
def strict_promotion():
    """Mixing dtypes is an error. In tests of maths: `pytestmark = pytest.mark.usefixtures("strict_promotion")`."""
    with jax.numpy_dtype_promotion("strict"):
        yield
