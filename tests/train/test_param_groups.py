import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.networks import np_jit

from qrag_jax.config import config_from_dict, load_config, to_dict
from qrag_jax.train.optimise import GroupConfig, group_optimiser, label_leaves, stop_frozen
from qrag_jax.train.qrag.config import RunConfig
from qrag_jax.train.qrag.learner import LearnerConfig, make_optimiser
from qrag_jax.types import UsageError

F32 = lambda *numbers: np.array(numbers, np.float32)  # noqa: E731
PARAMS = {"state": {"in": F32(1, -2), "out": F32(3)}, "action": {"in": F32(0.5)}}
GRADIENT = {"state": {"in": F32(0.1, 0.3), "out": F32(-0.2)}, "action": {"in": F32(40)}}


def step(groups, **options):
    """The change of parameters by two updates of the learner's optimiser with such groups, and its state."""
    return two_updates(LearnerConfig(groups=groups, **options), PARAMS, stop_frozen(GRADIENT, groups))


def two_updates(config, first, gradient):
    optimiser = make_optimiser(config, lambda count: jnp.float32(0.01))

    @np_jit
    def run(params):
        state = optimiser.init(params)
        for _ in range(2):
            change, state = optimiser.update(gradient, state, params)
            params = optax.apply_updates(params, change)
        return params, state

    params, state = run(first)
    return jax.tree.map(lambda a, b: a - b, params, first), params, state


def test_frozen_leaves_stay_bit_for_bit_and_have_no_state():
    _, params, state = step({"action/*": GroupConfig(frozen=True)})
    np.testing.assert_array_equal(params["action"]["in"], PARAMS["action"]["in"])
    trained = sum(x.size for x in jax.tree.leaves(PARAMS["state"]))
    assert sum(x.size for x in jax.tree.leaves(state) if x.ndim) == 2 * trained  # both moments


def test_frozen_leaves_are_as_if_they_were_not_there():
    """Also in the norm that gradients are clipped to: the frozen leaf's gradient is by far the largest."""
    found, *_ = step({"action/*": GroupConfig(frozen=True)})
    alone, *_ = two_updates(LearnerConfig(), {"state": PARAMS["state"]}, {"state": GRADIENT["state"]})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found["state"], alone["state"])


def test_a_factor_scales_the_change_of_its_leaves_alone():
    plain, *_ = step({})
    found, *_ = step({"state/in": GroupConfig(learning_rate_factor=0.25)})
    # The second update decays what the first has changed: equal but for learning_rate * weight_decay of that.
    np.testing.assert_allclose(found["state"]["in"], 0.25 * plain["state"]["in"], rtol=1e-4)
    for path in (("state", "out"), ("action", "in")):
        np.testing.assert_array_equal(found[path[0]][path[1]], plain[path[0]][path[1]])


def test_without_groups_the_state_is_that_of_plain_adamw():
    """Checkpoints of runs that knew no groups hold it."""
    rate = lambda count: jnp.float32(0.01)  # noqa: E731
    plain = optax.chain(optax.clip_by_global_norm(2.0), optax.adamw(rate, 0.9, 0.98, 1e-6, weight_decay=5e-4))
    found = make_optimiser(LearnerConfig(), rate).init(PARAMS)
    assert jax.tree.structure(found) == jax.tree.structure(plain.init(PARAMS))
    made = optax.sgd(0.1)
    assert group_optimiser(lambda factor: made, {}) is made


def test_all_that_does_not_fit_is_said_at_once():
    groups = {name: GroupConfig(frozen=True) for name in ("state/*", "*/in", "layer_7/*")}
    with pytest.raises(UsageError) as error:
        make_optimiser(LearnerConfig(groups=groups), lambda count: jnp.float32(1)).init(PARAMS)
    assert str(error.value).splitlines() == [
        "groups.layer_7/* matches no parameter; there are action/in, state/in, state/out",
        "state/in is in the groups state/* and */in: a parameter has one",
        "groups: every parameter is frozen, none is left to train",
    ]


def test_a_leaf_without_a_group_is_as_ever():
    labels = label_leaves(PARAMS, {"state/in": GroupConfig(0.5), "action/*": GroupConfig(frozen=True)})
    assert labels == {"state": {"in": "rate_x0.5", "out": "rate_x1.0"}, "action": {"in": "frozen"}}


def test_groups_are_written_in_configs(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "learner:\n  groups:\n    action/*: {frozen: true}\n    state/*: {learning_rate_factor: 0.1}\n"
    )
    config = load_config(RunConfig, tmp_path / "run.yaml")
    assert config.learner.groups == {"action/*": GroupConfig(frozen=True), "state/*": GroupConfig(0.1)}
    assert config_from_dict(RunConfig, to_dict(config), "saved") == config
