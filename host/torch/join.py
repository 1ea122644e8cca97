# SPDX-License-Identifier: Apache-2.0
"""Creates a communicator from the settings of torchrun and the environment.

One setting, ``controller``, says who plans the job: the address of the controller's job service, or "store": there is
no controller, the ranks exchange their addresses through torch's store and reduce over TCP.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from netfold.host import environment, shared_log
from netfold.host.api.communicator import Communicator
from netfold.host.api.join_settings import RailName
from netfold.host.client import addresses
from netfold.host.environment import RankIdentity
from netfold.host.errors import JoinRefused, PlanError
from netfold.host.mesh.sockets import listen
from netfold.host.opening.planes import RAILS_VARIABLE
from netfold.host.operation.coding import LaneBits
from netfold.host.torch.ahead import Wait, wait_from_environment
from netfold.host.torch.inside_group import Inside
from netfold.rpc.channel import CONTROLLER_VARIABLE
from netfold.wire.jobs import PROTOCOL
from netfold.wire.plan import Peer, Plan, Secret

STORE = "store"
"""Value of ``controller`` for a plan through torch's store, without trees."""
JOB_VARIABLE = "NETFOLD_JOB"
TIMEOUT_VARIABLE = "NETFOLD_TIMEOUT"
TOGETHER_VARIABLE = "NETFOLD_TOGETHER"
HOOK_TIMEOUT = 10.0

log = logging.getLogger("netfold")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of one group's communicator; None: the environment's value, or the default.

    controller    "host:port", "unix:/path" or "store"; $NETFOLD_CONTROLLER, else an error
    address       this host's IPv4 address on the fabric; $NETFOLD_ADDRESS, else that of the interface towards
                  $MASTER_ADDR or the controller, which is logged; with $NETFOLD_RAILS the planes have their own
    job           name of the job; $NETFOLD_JOB, else "default"
    rail          "auto", "innet" or "tcp", as for Communicator
    algorithm     of allreduce over TCP, as for Communicator
    lane_bits     of folded sums of floats, as for Communicator: 32, 16 or 8, rounded stochastically; $NETFOLD_LANE_BITS
    reproducible  of reductions of floats, as for Communicator; $NETFOLD_REPRODUCIBLE
    together      of the backend: a reduce-scatter joins the all-gather before it that is still under way, as in FSDP's
                  backward pass; must be the same on all ranks; $NETFOLD_TOGETHER, else no
    inside        of the backend: what sums tensors on devices inside a machine of several ranks: "group", a process
                  group between them, "memory", shared memory, or "auto", the faster one where there is NCCL;
                  $NETFOLD_INSIDE, else "memory"
    wait          of the backend: what the wait for an operation on a device's tensors blocks: "host", the calling
                  thread, or "device", its stream there alone; $NETFOLD_WAIT, else "host"
    timeout       seconds without progress after which a collective gives up; $NETFOLD_TIMEOUT, else the process
                  group's own timeout, or 10 for ``join``
    join_timeout  seconds to wait for the other ranks
    """

    controller: str | None = None
    address: str | None = None
    job: str | None = None
    rail: RailName = "auto"
    algorithm: str | None = None
    lane_bits: LaneBits | None = None
    reproducible: bool | None = None
    together: bool | None = None
    inside: Inside | None = None
    wait: Wait | None = None
    timeout: float | None = None
    join_timeout: float = 30.0

    def goes_together(self) -> bool:
        """True if reduce-scatters may join all-gathers.  Raises ValueError for an invalid environment variable."""
        if self.together is not None:
            return self.together
        said = os.environ.get(TOGETHER_VARIABLE, "0")
        if said not in ("0", "1"):
            raise ValueError(f"environment variable {TOGETHER_VARIABLE}={said!r}: expected 0 or 1")
        return said == "1"

    def runs_ahead(self) -> bool:
        """True if waits for a device's tensors block their stream alone.  Raises ValueError for another name."""
        return wait_from_environment(self.wait) == "device"


def join(
    options: Options | None = None,
    *,
    rank: int | None = None,
    world: int | None = None,
    store: dist.Store | None = None,
    timeout: float = HOOK_TIMEOUT,
    group_of: tuple[Communicator, Sequence[int]] | None = None,
) -> Communicator:
    """Joins the job with all ranks of the default process group, or with those given.

    rank, world  default: the default process group's, else $RANK and $WORLD_SIZE
    store        for controller="store"; default: the default process group's
    timeout      seconds, if neither options nor environment set one
    group_of     for controller="store": as in Communicator.of_plan
    Raises ValueError for missing and invalid settings, and the errors of Communicator.join.
    """
    options = options or Options()
    inside = dist.is_initialized()
    if rank is None or world is None:
        place = RankIdentity(dist.get_rank(), dist.get_world_size(), 0) if inside else environment.rank_identity()
        rank, world = place.rank if rank is None else rank, place.world if world is None else world
    job = options.job or os.environ.get(JOB_VARIABLE) or "default"
    me = f"job {job!r}, rank {rank} of {world}"
    for given, name, remedy in (
        (options.together, "together=True", ", and let `with comm.together()` make both calls at once"),
        (options.wait == "device", 'wait="device"', ""),
    ):
        if given:
            log.log(shared_log.level(rank), "%s: Options(%s) changes nothing in a communicator of its own, only in "
                    "groups of backend \"netfold\": leave it out here%s", me, name, remedy)
    rails = os.environ.get(RAILS_VARIABLE, "") if options.rail == "auto" else ""
    controller = options.controller or os.environ.get(CONTROLLER_VARIABLE)
    if not controller and not rails:
        raise JoinRefused(
            f"{me}: no controller is configured for this job: set {CONTROLLER_VARIABLE} or Options(controller=...) to "
            f"the job service's address (`netfold up` prints it), or to {STORE!r} to do without switches, over TCP "
            f"alone; or try it on this machine: netfold run -np {world} --topo leafspine,2,1,{world + world % 2} "
            "-- python SCRIPT"
        )
    if options.timeout is not None:
        timeout = options.timeout
    elif TIMEOUT_VARIABLE in os.environ:
        timeout = _seconds(TIMEOUT_VARIABLE)
    if rails and controller != STORE:  # their planes have addresses and controllers
        address, controller = options.address or "", options.controller
    else:
        if rails:
            log.log(shared_log.level(rank), "%s: controller=%r plans one rail: %s=%s is not followed", me, STORE,
                    RAILS_VARIABLE, rails)
        address = options.address or environment.address(
            os.environ.get("MASTER_ADDR", ""), "" if controller == STORE else controller or ""
        )
    if controller != STORE:
        return Communicator.join(
            job, rank, world, address=address, controller=controller, timeout=timeout,
            join_timeout=options.join_timeout, rail=options.rail, lane_bits=options.lane_bits,
            algorithm=options.algorithm, reproducible=options.reproducible,
        )
    store = store if store is not None else dist.distributed_c10d._get_default_store() if inside else None
    if store is None:
        raise ValueError(f"{me}: controller={STORE!r} needs a store: init_process_group() first, or give store=")
    listener = listen(address)
    try:
        tcp = "{}:{}".format(*listener.getsockname())
        plan = plan_by_store(store, job, rank, world, address, tcp, timeout=options.join_timeout)
        return Communicator.of_plan(
            plan, address=address, rail=options.rail, lane_bits=options.lane_bits, algorithm=options.algorithm,
            timeout=timeout, listener=listener, reproducible=options.reproducible, group_of=group_of,
        )
    except BaseException:
        listener.close()
        raise


def plan_by_store(
    store: dist.Store, job: str, rank: int, world: int, address: str, tcp: str, *, timeout: float,
    machine: str | None = None,
) -> Plan:
    """A plan without trees, agreed on through the store: every rank writes its address, rank 0 draws the epoch and the
    job's secret.  If some ranks cannot reach each other's addresses, all ranks raise PlanError.

    timeout  seconds to wait for the other ranks
    machine  a name of this process's network namespace; default: this_network()
    Raises JoinRefused, PlanError.
    """
    machine = environment.this_network() if machine is None else machine
    # A job may be joined again, after a failure or by another group: every time has keys of its own.
    turn = store.add(f"netfold/{job}/joins/{rank}", 1)
    keys = [f"netfold/{job}/{turn}/{r}" for r in range(world)]
    epoch = random.SystemRandom().getrandbits(31)
    store.set(keys[rank], f"{PROTOCOL} {world} {epoch} {secrets.token_hex(32)} {machine} {address} {tcp}")
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError as error:  # torch's DistStoreError and DistNetworkError are RuntimeErrors
        try:
            missing = [r for r in range(world) if not store.check([keys[r]])]
        except RuntimeError:
            raise JoinRefused(f"job {job!r}, rank {rank} of {world}: torch's store is gone: {error}") from error
        raise JoinRefused(
            f"job {job!r}, rank {rank} of {world}: waited {timeout:g} s at torch's store, ranks {missing} have not "
            f"joined for the {turn}. time; start them, or give a longer join_timeout"
        ) from error
    said = [store.get(key).decode().split(" ") for key in keys]
    for r, (protocol, size, *_) in enumerate(said):
        if (int(protocol), int(size)) != (PROTOCOL, world):
            raise PlanError(
                f"job {job!r}, rank {rank}: rank {r} speaks protocol {protocol} in a world of {size}, expected "
                f"{PROTOCOL} and {world}: install the same version everywhere, start all with one world size"
            )
    peers = [Peer(rank=r, address=where, tcp=at) for r, (*_, where, at) in enumerate(said)]
    if wrong := addresses.problem(peers, [machine for *_, machine, _, _ in said]):
        raise PlanError(f"job {job!r}, rank {rank} of {world}: {wrong}")
    return Plan(
        job=job,
        epoch=int(said[0][2]),
        rank=rank,
        world=world,
        peers=peers,
        trees=[],
        secret=Secret(said[0][3]),
        reason=f"controller={STORE!r}: planned through torch's store, without the fabric's controller",
    )


def _seconds(name: str) -> float:
    try:
        return float(os.environ[name])
    except ValueError:
        raise ValueError(f"environment variable {name}={os.environ[name]!r}: expected seconds") from None
