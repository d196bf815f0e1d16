"""Registries: each name once, each thing found by its name, and what is refused."""

import pytest

from qrag_jax.errors import UsageError
from qrag_jax.registry import Entry, Registry


@pytest.fixture
def registry():
    return Registry(
        "number",
        [Entry("pi", "math:pi", "a circle by its width"), Entry("tau", "math:tau", "a turn", frozenset({"turns"}))],
    )


def test_a_thing_is_imported_when_it_is_asked_for(registry):
    assert registry.load("pi") == pytest.approx(3.14159, abs=1e-5)
    assert (registry.names, list(registry), len(registry)) == (("pi", "tau"), ["pi", "tau"], 2)
    assert registry.help() == "  pi   a circle by its width\n  tau  a turn\n"
    registry.add(Entry("lost", "math:lost"))
    with pytest.raises(AttributeError):
        registry.load("lost")


def test_tags_choose_names(registry):
    assert registry.choices() == registry.names
    assert (registry.choices("turns"), registry.choices(without="turns")) == (("tau",), ("pi",))
    assert registry.choices("turns", without="turns") == registry.choices("turns", "flies") == ()


def test_a_name_of_nothing_and_one_that_is_taken_are_refused(registry):
    with pytest.raises(UsageError) as refused:
        registry.load("tua")
    assert (refused.value.field, refused.value.value, refused.value.remedy) == ("number", "tua", "did you mean tau?")
    with pytest.raises(UsageError) as refused:
        registry.add(Entry("pi", "cmath:pi"))
    assert (refused.value.field, refused.value.value) == ("number", "pi") and registry["pi"].target == "math:pi"
    with pytest.raises(UsageError):
        Registry("number", [Entry("e", "math:e"), Entry("e", "cmath:e")])
