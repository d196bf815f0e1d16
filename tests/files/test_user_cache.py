import os
import subprocess
import sys
import zlib
from importlib.metadata import version
from pathlib import Path

import pytest
from support.tiers import PATIENCE

from qrag_jax.files.user_cache import cache_folder, keep_compiled

DIR = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache folder of a process that has not imported JAX, and has no settings of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in (DIR, "JAX_ENABLE_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.setenv(name, "")  # so that what is set in its place goes at the end
        monkeypatch.delenv(name)
    for name in [name for name in sys.modules if name == "jax"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "qrag_jax"


def test_where_the_users_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "qrag_jax"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "qrag_jax"


def test_the_folder_is_the_users_alone_and_names_what_its_programs_are_for(cache):
    folder = keep_compiled()
    assert folder is not None and folder.parent == cache / "xla" and os.environ[DIR] == str(folder)
    assert folder.name.startswith(f"jax-{version('jax')}-{version('jaxlib')}-")
    for path in (cache, cache / "xla", folder):
        assert path.stat().st_mode & 0o777 == 0o700
    del os.environ[DIR]
    assert keep_compiled() == folder


def test_what_others_may_write_into_is_not_used(cache):
    folder = keep_compiled()
    del os.environ[DIR]
    for path in (folder, folder.parent):
        path.chmod(0o777)
        assert keep_compiled() is None and DIR not in os.environ
        path.chmod(0o700)
    folder.rename(cache / "elsewhere")
    folder.symlink_to(cache / "elsewhere")
    assert keep_compiled() is None and DIR not in os.environ


def test_a_folder_that_cannot_be_had_is_no_error(cache, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert keep_compiled() is None and DIR not in os.environ


@pytest.mark.parametrize("name, value", [(DIR, "/elsewhere"), ("JAX_ENABLE_COMPILATION_CACHE", "false")])
def test_what_the_user_has_set_stays(cache, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert keep_compiled() is None and not cache.exists() and os.environ.get(DIR) == (value if name == DIR else None)


def test_a_process_that_has_imported_jax_is_left_alone(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", object())
    assert keep_compiled() is None and not cache.exists()


def entry(folder, name, size=0, age=0.0):
    """A file as JAX writes it; `age` in seconds."""
    path = folder / f"{name}-cache"
    path.write_bytes(zlib.compress(os.urandom(size)))
    os.utime(path, (path.stat().st_mtime - age,) * 2)
    return path


def test_what_was_used_last_stays_when_there_is_too_much(cache):
    folder = keep_compiled()
    del os.environ[DIR]
    other = folder.with_name("jax-0-0-0")  # of an earlier release
    other.mkdir()
    paths = [entry(other, "old", 1000, 300), *(entry(folder, f"{i}", 1000, 200 - i) for i in range(4))]
    keep_compiled(6000)
    assert all(path.exists() for path in paths)
    del os.environ[DIR]
    keep_compiled(4500)  # they have about 5,100 bytes; down to half of the limit
    assert [path.exists() for path in paths] == [False, False, False, True, True]


def test_halves_of_processes_that_died_go_and_what_others_packed_stays(cache):
    folder = keep_compiled()
    del os.environ[DIR]
    whole, half, empty = (entry(folder, name, 100) for name in ("whole", "half", "empty"))
    half.write_bytes(whole.read_bytes()[:-3])
    empty.write_bytes(b"")
    packed = entry(folder, "packed")
    packed.write_bytes(b"\x28\xb5\x2f\xfd and so on")  # zstandard's mark
    keep_compiled()
    assert [path.exists() for path in (whole, half, empty, packed)] == [True, False, False, True]


CODE = """
import sys
from qrag_jax.files.user_cache import keep_compiled
print(keep_compiled())
import jax
print(jax.jit(lambda x: 2 * x + 1)(20).item())
"""


@pytest.mark.slow
def test_jax_takes_what_an_earlier_process_has_compiled(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != DIR}
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            env=env | {"XDG_CACHE_HOME": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        folder, value = done.stdout.split()
        assert value == "41" and not done.stderr
        found.append({path.name: path.stat().st_mtime_ns for path in Path(folder).glob("*-cache")})
    assert found[0] and found[0] == found[1]
