# SPDX-License-Identifier: Apache-2.0
"""The rank and the address of this process, from its launcher's environment variables.

Launchers are `netfold run`, torchrun, Slurm's srun, Open MPI's and MPICH's mpirun.  Each has variables of its own for
rank, world size and rank on this machine.  All three are taken from the first launcher that sets both rank and world
size, so that one launcher inside another (torchrun under srun) is not mixed up with it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from netfold.host import shared_log

LAUNCHERS = {
    "netfold run, torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPICH, Intel MPI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
"""Launcher -> its variables for rank, world size, and rank on this machine."""
ADDRESS_VARIABLE = "NETFOLD_ADDRESS"
UNKNOWN = "?"

log = logging.getLogger("netfold")


@dataclass(frozen=True)
class RankIdentity:
    """The rank of this process in its job."""

    rank: int
    world: int
    local_rank: int
    """Rank among the processes of the same machine; 0 if the launcher does not set it."""


def rank_identity(environment: Mapping[str, str] | None = None) -> RankIdentity:
    """This process's rank, from the environment.  Raises ValueError if no launcher's variables are set, or if one of
    them is no integer."""
    environment = os.environ if environment is None else environment
    for rank, world, local in LAUNCHERS.values():
        if rank in environment and world in environment:
            return RankIdentity(number(environment, rank), number(environment, world), number(environment, local, "0"))
    said = f"RANK={environment.get('RANK')!r}, WORLD_SIZE={environment.get('WORLD_SIZE')!r}"
    raise ValueError(
        f"which rank is this, of how many? {said}: expected both as integers, or those of {', '.join(LAUNCHERS)}; "
        "start with one of these, or give rank and world"
    )


def address(*towards: str) -> str:
    """This host's IPv4 address on the fabric: $NETFOLD_ADDRESS, else the address of the interface that leads to the
    first of ``towards``.  That is "host" or "host:port", or several of these with commas; empty ones and unix sockets
    are skipped.  Raises ValueError."""
    if said := os.environ.get(ADDRESS_VARIABLE):
        return said
    for target in (part.strip() for several in towards for part in several.split(",")):
        host = target.rpartition(":")[0] or target
        if not host or target.startswith("unix:"):
            continue
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))  # sends nothing: it only looks up the route
                found: str = probe.getsockname()[0]
        except OSError as error:
            raise ValueError(f"no IPv4 route to {target!r} ({error}); set {ADDRESS_VARIABLE}") from error
        log.log(shared_log.level(_local_rank()), "%s is not set, using %s, which leads to %s", ADDRESS_VARIABLE, found,
                target)
        return found
    raise ValueError(
        f"{ADDRESS_VARIABLE} is not set, and no controller at host:port says which interface leads to the fabric: set "
        "it to this host's IPv4 address there, as netfold run does"
    )


def this_network() -> str:
    """A name of this process's network namespace: processes with another name cannot reach its loopback addresses.
    UNKNOWN if the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return UNKNOWN


def number(environment: Mapping[str, str], name: str, default: str = "") -> int:
    """An environment variable as an integer.  Raises ValueError."""
    value = environment.get(name, default)
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"environment variable {name}={value!r}: expected an integer") from None


def _local_rank() -> int:
    """This process's rank on its machine; 0 if no launcher sets it."""
    try:
        return rank_identity().local_rank
    except ValueError:
        return 0
