"""Arrays on many devices: a mesh from the config, shardings for data parallel and FSDP, several processes.

The update is one jitted function; XLA splits it along the shardings of its arguments. A batch is split over all devices
of the mesh. With `fsdp` above 1, parameters, target and optimiser state are split too, each array along its longest
axis that divides, and gathered where they are used.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from qrag_jax.types import Arg, InputError, UsageError, check_fields

PyTree = Any
_AXES = ("data", "fsdp")
SMALLEST_SPLIT = 2**12  # elements; splitting a smaller array costs more than it saves


@dataclass(frozen=True)
class MeshConfig:
    """How many devices a run uses, and for what. Apart from rounding, the result does not depend on it.

    Attributes:
        data: groups of devices; each has all parameters and a share of the batch.
        fsdp: devices of a group; they split the parameters, the optimiser's state, and the group's share of the batch.
    """

    data: int = 1
    fsdp: int = 1

    def __post_init__(self) -> None:
        check_fields(self, positive=("data", "fsdp"))

    @property
    def axes(self) -> dict[str, int]:
        """Devices along each axis, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.axes.values())


@dataclass(frozen=True)
class DecoderMesh(MeshConfig):
    """A mesh of which a further axis splits the layers of a decoder (`models/decoder/sharding.py`).

    Attributes:
        model: devices that share each layer, and have the same rows of a batch.
    """

    model: int = 1

    def __post_init__(self) -> None:
        check_fields(self, positive=("data", "fsdp", "model"))


def start_processes(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the processes of a run; call it before anything uses a device.

    Args:
        coordinator: `HOST:PORT` of process 0; None asks the cluster (SLURM, Open MPI, Kubernetes, TPU pods).
        num_processes: number of processes; None asks the cluster.
        process_id: number of this process; None asks the cluster.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # read on CPU only
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"cannot start process {process_id} of {num_processes} at {coordinator}: {error}",
            remedy=(
                ". Give ",
                *(Arg("coordinator", "HOST:PORT"), ", ", Arg("num_processes"), " and ", Arg("process_id")),
                ", or start the run with srun, mpirun or on a TPU pod",
            ),
        ) from error


def is_main_process() -> bool:
    """True if this process writes logs and messages; True if it is the only one."""
    return jax.process_index() == 0


def make_mesh(config: MeshConfig) -> Mesh:
    """The mesh of a run, with the axes of its config."""
    devices, axes = jax.devices(), config.axes
    asked = " x ".join(f"mesh.{name}={number}" for name, number in axes.items())
    if config.size > len(devices):
        raise UsageError(
            f"{asked} needs {config.size} devices, but there are "
            f"{len(devices)} ({devices[0].platform}); lower one of them"
        )
    if jax.process_count() > 1 and config.size != len(devices):
        raise UsageError(
            f"{asked} must use all {len(devices)} devices of the {jax.process_count()} processes; raise one of them"
        )
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices[: config.size])


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device has the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def split_rows(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Every device has a share of the rows, along the given axis."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, _AXES))


def state_shardings(mesh: Mesh, state: PyTree) -> PyTree:
    """The sharding of each array of a training state.

    Args:
        state: arrays or their shapes (`jax.eval_shape`).
    """

    def of(leaf: Any) -> NamedSharding:
        ways = mesh.shape["fsdp"]
        axes = [axis for axis, size in enumerate(leaf.shape) if size % ways == 0]
        if ways == 1 or not axes or math.prod(leaf.shape) < SMALLEST_SPLIT:
            return replicated(mesh)
        longest = max(axes, key=lambda axis: leaf.shape[axis])
        return NamedSharding(mesh, PartitionSpec(*[None] * longest, "fsdp"))

    return jax.tree.map(of, state)


def place(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Turns host arrays, equal in every process, into global arrays of which each device has its share."""
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda x: jax.make_array_from_callback(np.shape(x), sharding, np.asarray(x).__getitem__), tree)


def to_host(tree: PyTree, mesh: Mesh) -> PyTree:
    """Gathers whole arrays from global ones, in every process; all processes must call it together."""
    whole = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))(tree)
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), whole)


def any_process(asked: bool) -> bool:
    """True if any process passes True, in all of them; one small all-gather."""
    if jax.process_count() == 1:
        return asked
    return bool(multihost_utils.process_allgather(np.array(asked)).any())


def check_same_everywhere(what: str, digest: str) -> None:
    """Refuses processes with different data, because their results would be mixed silently."""
    if jax.process_count() == 1:
        return
    own = np.frombuffer(bytes.fromhex(digest), np.uint8)
    others = multihost_utils.process_allgather(own)
    different = [i for i, other in enumerate(others) if (other != others[0]).any()]
    if different:
        raise InputError(
            f"processes {different} see other data than process 0; {what} must be the same files on every machine"
        )


def map_rows(function: Callable[..., jax.Array], shared: PyTree, *rows: jax.Array) -> jax.Array:
    """`function(shared, *rows) -> [n, ...]`; each device of the current mesh computes its share of the n rows.

    For functions that XLA cannot split, such as loops over blocks of rows. The result is on every device. Without a
    mesh (`jax.set_mesh`), or if the rows do not divide, the function is called directly.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or rows[0].shape[0] % mesh.size:
        return function(shared, *rows)
    split = PartitionSpec(_AXES)
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=(PartitionSpec(), *[split] * len(rows)), out_specs=split, check_vma=False
    )
    return jax.lax.with_sharding_constraint(mapped(shared, *rows), PartitionSpec())
