# SPDX-License-Identifier: Apache-2.0
"""Validates requests to join: each by itself, and against the ranks that have joined before."""

from __future__ import annotations

import itertools
import re
from typing import Final, NoReturn

from netfold.controller.health.drains import Drains
from netfold.controller.jobs.job import Job
from netfold.fabric.graph import Fabric, Tenant
from netfold.rpc.rpc import Code, Refusal
from netfold.wire import listeners
from netfold.wire.jobs import LANE_BITS, MAX_WORLD, PROTOCOL, Join
from netfold.wire.roce import PATH_MTUS, UDP_PORT, UDP_PORTS, is_udp_port

MAX_TIMEOUT: Final = 600.0


def check(r: Join, fabric: Fabric, drains: Drains) -> None:
    """Check a request by itself.  Raises Refusal."""
    who = f"job {r.job!r}, rank {r.rank}"
    if not re.fullmatch(r"[\w.:@/+-]{1,128}", r.job):
        refuse(Code.INVALID_ARGUMENT, f"job: expected 1 to 128 letters, digits or any of _.:@/+-, got {r.job!r}")
    if r.protocol != PROTOCOL:
        refuse(Code.FAILED_PRECONDITION, f"{who}: protocol: expected {PROTOCOL}, got {r.protocol}. Host and "
                                         "controller are of different versions: install the same one")
    fitting = [mtu for mtu in PATH_MTUS if mtu <= fabric.path_mtu] if r.kind == "rc" else [fabric.path_mtu]
    if r.path_mtu not in (0, *fitting):
        refuse(Code.FAILED_PRECONDITION, f"{who}: path_mtu: expected {' or '.join(map(str, fitting))}, which the "
                                         f"switches are made for, got {r.path_mtu}")
    if not 1 <= r.world <= MAX_WORLD:
        refuse(Code.INVALID_ARGUMENT, f"{who}: world: expected 1..{MAX_WORLD}, got {r.world}")
    if not 0 <= r.rank < r.world:
        refuse(Code.INVALID_ARGUMENT, f"{who}: rank: expected 0..{r.world - 1}, got {r.rank}")
    if r.lane_bits not in LANE_BITS:
        refuse(Code.INVALID_ARGUMENT, f"{who}: lane_bits: expected 32, 16 or 8, got {r.lane_bits}")
    if not 0 < r.timeout <= MAX_TIMEOUT:
        refuse(Code.INVALID_ARGUMENT, f"{who}: timeout: expected up to {MAX_TIMEOUT:g} s, got {r.timeout}")
    check_tcp(r.tcp, who)
    for rail in r.rails:
        check_tcp(rail.at, f"{who}, rail {rail.kind}")
    if r.udp_port != UDP_PORT and (r.kind == "rc" or not is_udp_port(r.udp_port)):
        others = "" if r.kind == "rc" else f", or {UDP_PORTS[0]}..{UDP_PORTS[-1]}"
        refuse(Code.INVALID_ARGUMENT, f"{who}: udp_port: expected {UDP_PORT}{others}, where switches look for RoCEv2, "
                                      f"got {r.udp_port}")
    host = fabric.host_at(r.address)
    if host is None:
        known = ", ".join(host.address for host in fabric.hosts[:8])
        more = "" if len(fabric.hosts) <= 8 else f" and {len(fabric.hosts) - 8} more"
        refuse(Code.INVALID_ARGUMENT, f"{who}: address: no host of the fabric {fabric.name} has "
                                      f"{r.address}; it has {known}{more}. Give the rank the address of its "
                                      "fabric interface")
    if r.kind == "rc" and not host.rdma:
        refuse(Code.FAILED_PRECONDITION, f"{who}: kind: expected \"windowed\", since {host.name} is not marked rdma = "
                                         "true in the fabric file and has no fold address, got \"rc\". Mark it there "
                                         "if it has a NIC for RDMA")
    if leaf := drains.leaf_of(host.name):
        refuse(Code.FAILED_PRECONDITION, f"{who}: {host.name} is at {leaf}, which is drained. Start the rank "
                                         f"elsewhere; when {leaf} may be used again: `netfold undrain {leaf}`")


def kinds(r: Join) -> str:
    """The kinds of a rank's rails, in words."""
    return "+".join(rail.kind for rail in r.rails) or "one rail"


def check_tcp(tcp: str, who: str) -> None:
    """Check where a rank says that its mesh listens: where nobody can connect to, its peers would refuse their plans.
    Raises Refusal."""
    try:
        listeners.parse(tcp)
    except ValueError as error:
        refuse(Code.INVALID_ARGUMENT, f"{who}: tcp: {error}")


def check_owner(job: Job, tenant: Tenant) -> None:
    """Check that a tenant may join a job, or join anew one that ends.  Raises Refusal."""
    if tenant.name != job.tenant.name:
        refuse(Code.PERMISSION_DENIED, f"{job}: the name is taken by a job of another tenant. Give this job another "
                                       "name")


def check_against(job: Job, r: Join, path_mtu: int) -> None:
    """Check a request against the ranks that have joined the job before; ``path_mtu`` is the fabric's.  Raises
    Refusal."""
    if r.rank in job.joins:
        refuse(Code.ALREADY_EXISTS, f"{job}: rank {r.rank} has joined already, from {job.joins[r.rank].address}. "
                                    "Give this job another name; if its ranks are dead, "
                                    f"`netfold drop {job.name}` ends it")
    if r.world != job.world:
        first = min(job.joins)
        refuse(Code.FAILED_PRECONDITION, f"{job}, rank {r.rank}: world: expected {job.world}, as rank {first} "
                                         f"has said, got {r.world}. Start all ranks with one world size")
    for rank, other in itertools.islice(job.joins.items(), 1):  # all the others have said the same
        if r.lane_bits != other.lane_bits:
            refuse(Code.FAILED_PRECONDITION, f"{job}, rank {r.rank}: lane_bits: expected {other.lane_bits}, as rank "
                                             f"{rank} has said, got {r.lane_bits}. Give all ranks the same")
        if (other.path_mtu or path_mtu) != (r.path_mtu or path_mtu):
            refuse(Code.FAILED_PRECONDITION, f"{job}, rank {r.rank}: path_mtu: expected {other.path_mtu or path_mtu}, "
                                             f"as rank {rank} has said, got {r.path_mtu or path_mtu}. Give all ranks "
                                             "the same")
        if kinds(r) != kinds(other):
            refuse(Code.FAILED_PRECONDITION, f"{job}, rank {r.rank}: rails: expected {kinds(other)}, as rank {rank} "
                                             f"has said, got {kinds(r)}. Give all ranks the same")
    job.has_rc |= r.kind == "rc"
    for rank, other in job.joins.items() if job.has_rc else ():
        if other.address == r.address and "rc" in (r.kind, other.kind):
            refuse(Code.FAILED_PRECONDITION, f"{job}, rank {r.rank}: address: rank {rank} is at {r.address} already: "
                                             "expected a machine for each rank where one folds with its NIC (kind "
                                             "\"rc\")")


def refuse(code: Code, message: str) -> NoReturn:
    """Raise a Refusal."""
    raise Refusal(code, message)
