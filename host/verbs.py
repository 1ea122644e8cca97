# SPDX-License-Identifier: Apache-2.0
"""One communicator for the whole process, configured by the environment: init, rank, size, allreduce, shutdown."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from netfold.host.collectives.elements import ReduceOp
from netfold.host.communicator import Communicator, RailName
from netfold.host.errors import NetFoldError

_world: Communicator | None = None


def init(
    *,
    job: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    address: str | None = None,
    controller: str | None = None,
    timeout: float = 10.0,
    rail: RailName = "auto",
    algorithm: str | None = None,
) -> Communicator:
    """Joins the job that the environment names; arguments win over the environment.

    NETFOLD_JOB (default "default"), RANK, WORLD_SIZE, NETFOLD_ADDRESS (this host's fabric address),
    NETFOLD_CONTROLLER.  Raises ValueError for what is missing, and what Communicator.join raises.
    """
    global _world
    if _world is None:
        atexit.register(shutdown)  # a script that ends without saying goodbye still leaves its job
    else:
        raise NetFoldError("netfold.init() was called before; call netfold.shutdown() first")
    _world = Communicator.join(
        job if job is not None else os.environ.get("NETFOLD_JOB", "default"),
        rank if rank is not None else _number("RANK"),
        world if world is not None else _number("WORLD_SIZE"),
        address=address if address is not None else _text("NETFOLD_ADDRESS"),
        controller=controller,
        timeout=timeout,
        rail=rail,
        algorithm=algorithm,
    )
    return _world


def rank() -> int:
    """This process's rank."""
    return _communicator().rank


def size() -> int:
    """How many ranks the job has."""
    return _communicator().size


def allreduce(array: NDArray[Any], out: NDArray[Any] | None = None, op: ReduceOp = "sum") -> NDArray[Any]:
    """``Communicator.allreduce`` of the process's communicator."""
    return _communicator().allreduce(array, out, op)


def broadcast(array: NDArray[Any], *, root: int = 0) -> NDArray[Any]:
    """``Communicator.broadcast`` of the process's communicator: in place."""
    return _communicator().broadcast(array, root=root)


def broadcast_parameters(parameters: Mapping[str, NDArray[Any]] | Iterable[NDArray[Any]], *, root: int = 0) -> None:
    """Fills every rank's arrays with the root's, in place: the same start for all, as in Horovod."""
    values = parameters.values() if isinstance(parameters, Mapping) else parameters
    for array in values:
        broadcast(array, root=root)


def barrier() -> None:
    """Returns once every rank has called it."""
    _communicator().barrier()


def shutdown() -> None:
    """Leaves the job; ``init`` may be called again.  Does nothing where there is none."""
    global _world
    if _world is not None:
        world, _world = _world, None
        atexit.unregister(shutdown)
        world.close()


def _communicator() -> Communicator:
    if _world is None:
        raise NetFoldError("no job: call netfold.init() first")
    return _world


def _text(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ValueError(f"environment variable {name} is not set, and init() got no argument in its place")
    return value


def _number(name: str) -> int:
    value = _text(name)
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"environment variable {name}={value!r}: expected an integer") from None
