# SPDX-License-Identifier: Apache-2.0
"""Opens the mesh between the ranks of a plan."""

from __future__ import annotations

import logging
import os
import socket

from netfold.host import environment
from netfold.host.client.jobs import JobClient
from netfold.host.client.path_client import PlannedPaths
from netfold.host.errors import PlanError
from netfold.host.mesh.memory import MemoryFabric
from netfold.host.mesh.mesh import Mesh
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan

OPEN_PAIRS_VARIABLE = "NETFOLD_OPEN_PAIRS"

log = logging.getLogger("netfold")


def open_mesh(
    plan: Plan,
    listener: socket.socket | None,
    timeout: float,
    rail: str,
    client: JobClient | None,
    timeline: Timeline | None = None,
) -> Mesh:
    """The mesh between all ranks: over queue pairs for rail "roce", else over TCP; in memory for a job of one rank.

    listener  bound TCP socket whose port stands in the plan; the mesh owns it from here on
    Raises ValueError without one, or where $NETFOLD_OPEN_PAIRS is not an integer of 1 or more; TransportError.
    """
    if plan.world == 1:
        if listener is not None:
            listener.close()
        return MemoryFabric(1).meshes[0]
    if listener is None:
        raise ValueError("a job of several ranks needs the listening socket whose port stands in the plan (listener=)")
    if rail == "roce":
        from netfold.host.roce.mesh import RoceMesh  # its native library is built only where it is wanted
        from netfold.host.roce.queue_pairs import MAX_OPEN

        open_pairs = environment.number(os.environ, OPEN_PAIRS_VARIABLE, str(MAX_OPEN))
        return RoceMesh(
            plan, listener, timeout=timeout, open_pairs=open_pairs, planned=_planned(plan, client), timeline=timeline
        )
    paths = None if client is None else PlannedPaths(client, plan, needed=False)
    return TcpMesh(plan, listener, timeout=timeout, planned=paths, timeline=timeline)


def _planned(plan: Plan, client: JobClient | None) -> PlannedPaths | None:
    """The controller's paths for this job, where it plans any; all ranks get them or none does."""
    if client is None:
        return None
    try:
        return PlannedPaths(client, plan)
    except PlanError as error:
        log.warning("%s; the switches choose paths by their hash", error)
        return None
