# SPDX-License-Identifier: Apache-2.0
"""One communicator for the whole process, configured by the environment, with Horovod's names.

As there, ``root_rank`` and ``allgather`` are the names; unlike there, ``allreduce`` sums where nothing is said:
``op=Average`` is Horovod's default.  For torch's tensors see ``netfold.host.torch.verbs``.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from numpy.typing import NDArray

from netfold.host import environment
from netfold.host.api import objects
from netfold.host.api.communicator import Communicator, OnLoss, end_of_process
from netfold.host.api.join_settings import RailName
from netfold.host.errors import NetFoldError
from netfold.host.opening.planes import RAILS_VARIABLE
from netfold.host.operation.coding import LaneBits
from netfold.host.operation.reduction import ReduceOp
from netfold.rpc.channel import CONTROLLER_VARIABLE

Average: Final = "average"
Sum: Final = "sum"
Min: Final = "min"
Max: Final = "max"
Product: Final = "product"

_world: Communicator | None = None
os.register_at_fork(after_in_child=lambda: atexit.unregister(_leave_at_exit))  # only who has joined leaves


def join(
    *,
    job: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    address: str | None = None,
    controller: str | None = None,
    rail: RailName = "auto",
    **settings: Any,
) -> Communicator:
    """Joins the job that the environment names, as ``init`` does; the communicator belongs to the caller.

    settings  further parameters of ``Communicator.join``
    """
    if rank is None or world is None:
        place = environment.rank_identity()
        rank, world = place.rank if rank is None else rank, place.world if world is None else world
    where = controller or os.environ.get(CONTROLLER_VARIABLE, "")
    if address is None and rail == "auto" and os.environ.get(RAILS_VARIABLE):
        address = ""  # several rails have planes with addresses
    return Communicator.join(
        job if job is not None else os.environ.get("NETFOLD_JOB", "default"),
        rank,
        world,
        address=address if address is not None else environment.address(where, os.environ.get("MASTER_ADDR", "")),
        controller=controller,
        rail=rail,
        **settings,
    )


def init(
    *,
    job: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    address: str | None = None,
    controller: str | None = None,
    timeout: float = 10.0,
    join_timeout: float = 30.0,
    rail: RailName = "auto",
    algorithm: str | None = None,
    lane_bits: LaneBits | None = None,
    reproducible: bool | None = None,
    on_loss: OnLoss = "raise",
) -> Communicator:
    """Joins the job that the environment names; arguments override the environment.

    timeout       seconds without progress after which an operation gives up
    join_timeout  seconds to wait for the other ranks

    The environment: NETFOLD_JOB (default "default"), NETFOLD_CONTROLLER, rank and world size as the launcher sets
    them.  This host's address is NETFOLD_ADDRESS, or that of the interface towards the controller (``environment``).
    Raises ValueError for missing settings, and the errors of Communicator.join.
    """
    global _world
    if _world is not None:
        raise NetFoldError("netfold.init() was called before; call netfold.shutdown() first")
    atexit.register(_leave_at_exit)  # a script that ends without calling shutdown() still leaves its job
    _world = join(
        job=job, rank=rank, world=world, address=address, controller=controller, timeout=timeout,
        join_timeout=join_timeout, rail=rail, algorithm=algorithm, lane_bits=lane_bits, reproducible=reproducible,
        on_loss=on_loss,
    )
    return _world


def is_initialized() -> bool:
    """True between ``init`` and ``shutdown``."""
    return _world is not None


def communicator() -> Communicator:
    """The process's communicator.  Raises NetFoldError before ``init``."""
    if _world is None:
        raise NetFoldError("no job: call netfold.init() first")
    return _world


def rank() -> int:
    """This process's rank."""
    return communicator().rank


def size() -> int:
    """The number of ranks of the job."""
    return communicator().size


def local_rank() -> int:
    """This process's rank among those of its machine, as set by the launcher; 0 if it sets none."""
    communicator()
    try:
        return environment.rank_identity().local_rank
    except ValueError:  # init() was told rank and world
        return 0


def allreduce(array: NDArray[Any], out: NDArray[Any] | None = None, op: ReduceOp = "sum") -> NDArray[Any]:
    """``Communicator.allreduce`` of the process's communicator."""
    return communicator().allreduce(array, out, op)


def allgather(array: NDArray[Any]) -> NDArray[Any]:
    """Every rank's rows, one after another; ranks may have different numbers of them."""
    import numpy as np

    from netfold.host.operation.arrays import plain

    comm, array = communicator(), plain(array)
    if array.ndim == 0:
        raise ValueError("allgather of a single number: expected one or more dimensions")
    rows = comm.all_gather(np.array([len(array)], np.int64))
    return comm.all_gather(array, counts=rows.tolist())


def allgather_object(value: Any) -> list[Any]:
    """Every rank's object, in order of rank.  Objects are pickled, and unpickled only if a rank of the job has provably
    sent them (``objects``), so ranks must trust each other's data.  Raises Unproven."""
    return objects.allgather(communicator(), value)


def broadcast_object(value: Any, root_rank: int = 0) -> Any:
    """The root's object, as by ``allgather_object``; the other ranks' arguments are ignored."""
    return objects.broadcast(communicator(), value, root_rank)


def broadcast(array: NDArray[Any], root_rank: int = 0) -> NDArray[Any]:
    """Fills every rank's array with that of the root, in place (``Communicator.broadcast``)."""
    return communicator().broadcast(array, root=root_rank)


def broadcast_parameters(
    parameters: Mapping[str, NDArray[Any]] | Iterable[NDArray[Any] | tuple[str, NDArray[Any]]], root_rank: int = 0
) -> None:
    """Fills every rank's arrays with the root's, in place, so that all start the same.

    parameters  name -> array, arrays, or pairs of name and array; in the same order on all ranks
    """
    values = parameters.values() if isinstance(parameters, Mapping) else parameters
    for value in values:
        broadcast(value[1] if isinstance(value, tuple) else value, root_rank)


def barrier() -> None:
    """Returns once every rank has called it."""
    communicator().barrier()


def shutdown(reason: str = "") -> None:
    """Leaves the job; ``init`` may be called again.  Does nothing before ``init``.

    reason  why, if the program is not done (``Communicator.close``)
    """
    global _world
    if _world is not None:
        world, _world = _world, None
        atexit.unregister(_leave_at_exit)
        world.close(reason)


def _leave_at_exit() -> None:
    """Leaves the job at the end of the process, once operations under way are done."""
    shutdown(end_of_process())
