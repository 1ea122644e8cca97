# SPDX-License-Identifier: Apache-2.0
"""Opens the mesh between the ranks of a plan, with the choice of paths that the job asks for.

    planned  as the controller plans (Ethereal): flows cut over source ports that name paths
    hashed   one source port to each peer, chosen by the kernel: the switches' hash decides (ECMP)
    spray    each packet at random over the equally short paths, at the leaf
    reps     each packet by a source port of the host's choice, from those of unmarked ACKs (REPS): queue pairs only
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Any, Literal, get_args

from netfold.host import environment, shared_log
from netfold.host.client.jobs import JobClient
from netfold.host.client.path_client import PlannedPaths
from netfold.host.errors import PlanError
from netfold.host.mesh.memory import MemoryFabric
from netfold.host.mesh.mesh import Mesh
from netfold.host.mesh.planned import OnePort, PathSource
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.tracing.timeline import Timeline
from netfold.wire import roce
from netfold.wire.plan import Plan

OPEN_PAIRS_VARIABLE = "NETFOLD_OPEN_PAIRS"
PATHS_VARIABLE = "NETFOLD_PATHS"
PathChoice = Literal["planned", "hashed", "spray", "reps"]
OVERTAKE = 64
"""Packets that may overtake a packet before it counts as lost, when packets take different paths; at most half a
window."""

log = logging.getLogger("netfold")


def path_choice(asked: PathChoice | None, rail: str) -> PathChoice:
    """How a job's packets choose paths: as asked for, else as $NETFOLD_PATHS says, else "planned".

    Raises ValueError for what is none of PathChoice, and for what the rail cannot do.
    """
    found = asked or os.environ.get(PATHS_VARIABLE) or "planned"
    where = f"paths={found!r} (argument or {PATHS_VARIABLE})"
    for known in get_args(PathChoice):
        if found == known:
            if known == "reps" and rail != "roce":
                raise ValueError(f"{where}, rail={rail!r}: a TCP connection cannot take a source port for each packet; "
                                 "give rail='roce', or 'spray'")
            choice: PathChoice = known
            return choice
    raise ValueError(f"{where}: expected one of {', '.join(get_args(PathChoice))}")


def open_mesh(
    plan: Plan,
    listener: socket.socket | None,
    timeout: float,
    rail: str,
    client: JobClient | None,
    timeline: Timeline | None = None,
    paths: PathChoice | None = None,
    *,
    receiver: socket.socket | None = None,
) -> Mesh:
    """The mesh between all ranks: over queue pairs for rail "roce", else over TCP; in memory for a job of one rank.

    listener  bound TCP socket whose port stands in the plan; the mesh owns it from here on
    paths     see ``path_choice``
    receiver  as for ``RoceMesh``
    Raises ValueError without a listener, or where $NETFOLD_OPEN_PAIRS is not an integer of 1 or more; TransportError.
    """
    choice = path_choice(paths, rail)
    if plan.world == 1:
        if listener is not None:
            listener.close()
        return MemoryFabric(1).meshes[0]
    if listener is None:
        raise ValueError("a job of several ranks needs the listening socket whose port stands in the plan (listener=)")
    if rail == "roce":
        from netfold.host.roce.mesh import WINDOW_BYTES, RoceMesh  # its native library is built only where it is wanted
        from netfold.host.roce.queue_pairs import MAX_OPEN

        open_pairs = environment.number(os.environ, OPEN_PAIRS_VARIABLE, str(MAX_OPEN))
        return RoceMesh(
            plan, listener, timeout=timeout, open_pairs=open_pairs, timeline=timeline, receiver=receiver,
            **roce_paths(plan, client, choice, WINDOW_BYTES // plan.path_mtu),
        )
    planned: PathSource | None = None
    if choice == "spray":
        planned = OnePort(plan, roce.PATH_PORT)
    elif choice == "planned" and client is not None:
        planned = PlannedPaths(client, plan, needed=False)
    return TcpMesh(plan, listener, timeout=timeout, planned=planned, timeline=timeline)


def roce_paths(plan: Plan, client: JobClient | None, choice: PathChoice, window: int) -> dict[str, Any]:
    """The argument of a RoceMesh for this choice."""
    overtake = min(OVERTAKE, window // 2)
    if choice == "spray":
        return {"ports": [roce.PATH_PORT], "reorder": overtake}
    planned = None if choice == "hashed" else _planned(plan, client)
    if choice != "reps":
        return {"planned": planned}
    ports: list[int] = []
    if planned is not None:  # names of paths, so that each packet's choice holds where leaves pin
        ports = planned.ports if len(planned.ports) > 1 else []
        planned.close()
    return {"ports": ports, "recycle": True, "reorder": overtake}


def _planned(plan: Plan, client: JobClient | None) -> PlannedPaths | None:
    """The controller's paths for this job, where it plans any; all ranks get them or none does."""
    if client is None:
        return None
    try:
        return PlannedPaths(client, plan)
    except PlanError as error:
        log.log(shared_log.level(plan.rank), "%s; the switches choose paths by their hash", error)
        return None
