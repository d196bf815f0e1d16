"""What the test run itself stands on: flags that XLA knows, what it keeps, what it measures, which tier has what."""

import json
import os
import sys

import compiling
import hypothesis
import pytest
from cpu_times import summary
from tiers import FULL, examples, slow_but


@pytest.mark.slow
def test_flags_that_xla_does_not_know_are_left_out_and_tried_once(tmp_path, monkeypatch):
    known, unknown = "--xla_backend_optimization_level=0", "--xla_no_such_flag=1"
    monkeypatch.setattr(compiling, "FOLDER", tmp_path)
    monkeypatch.setattr(compiling, "FAST", (known, unknown))
    monkeypatch.delenv("QRAG_FAST_COMPILE", raising=False)
    assert compiling.fast_flags() == [known]
    monkeypatch.setattr(compiling, "_try", lambda flags: pytest.fail("tried again"))
    assert compiling.fast_flags() == [known]
    monkeypatch.setenv("QRAG_FAST_COMPILE", "0")
    assert compiling.fast_flags() == []


def test_another_fault_than_an_unknown_flag_is_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "FOLDER", tmp_path)
    monkeypatch.setattr(compiling, "_try", lambda flags: "no memory")
    monkeypatch.delenv("QRAG_FAST_COMPILE", raising=False)
    assert compiling.fast_flags() == [] and list(tmp_path.iterdir()) == []


def test_compiled_programs_of_the_last_environments_are_kept_up_to_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "FOLDER", tmp_path)
    monkeypatch.setattr(compiling, "MOST_BYTES", 5)
    for age in range(4):
        (tmp_path / f"xla-{age}").mkdir()
        os.utime(tmp_path / f"xla-{age}", (100 - age, 100 - age))
    (tmp_path / "xla-flags-1").write_text("kept")
    own = compiling.compiled_folder()
    assert {path.name for path in tmp_path.iterdir()} == {own.name, "xla-0", "xla-1", "xla-flags-1"}
    (own / "small").write_text("12345")
    assert compiling.compiled_folder() == own and (own / "small").is_file()
    (own / "more").write_text("6")
    assert compiling.compiled_folder() == own and list(own.iterdir()) == []
    monkeypatch.setenv("XLA_FLAGS", "--other=1")
    assert compiling.compiled_folder() != own


def test_cpu_seconds_add_up_by_module_and_case(tmp_path):
    rows = [("a.py::one", 2.0), ("b.py::two[x]", 0.5), ("a.py::three", 1.0)]
    for name, part in (("gw0", rows[:2]), ("gw1", rows[2:])):
        lines = [{"test": test, "cpu": cpu} for test, cpu in part] + [{"test": "SESSION", "cpu": 9, "peak_mb": 1500}]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert summary(tmp_path).splitlines() == [
        "gw0: 9 s in all, peak memory 1,500 MB",
        "gw1: 9 s in all, peak memory 1,500 MB",
        "3 cases of 2 modules: 4 s",
        "     3.0  a.py (2)",
        "     0.5  b.py (1)",
        "slowest cases:",
        "     2.0  a.py::one",
        "     1.0  a.py::three",
        "     0.5  b.py::two[x]",
    ]


def test_examples_are_scaled_by_the_profile():
    share = hypothesis.settings.default.max_examples / FULL
    assert share in (0.25, 1)
    counted = examples(200)(hypothesis.given(hypothesis.strategies.none())(lambda value: None))
    assert counted._hypothesis_internal_use_settings.max_examples == 200 * share


def test_one_value_stays_in_the_quick_tier_and_a_tuple_is_several_arguments():
    params = slow_but([("a", 1)], [("a", 1), ("b", 2)])
    assert [(param.values, [mark.name for mark in param.marks]) for param in params] == [
        (("a", 1), []),
        (("b", 2), ["slow"]),
    ]
    assert [param.values for param in slow_but([], "xy")] == [("x",), ("y",)]


def test_what_checked_modules_import_is_not_compiled_anew():
    """In another file than that of the package's installation: no such file is there, or it was written beside it."""
    assert any(name.startswith("flax.") for name in sys.modules)
    specs = {name: module.__spec__ for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None)}
    own = [name for name, spec in specs.items() if ".opt-jaxtyping" in (spec.cached or "")]
    assert [name for name in own if not name.startswith("qrag_jax.")] == []
