# SPDX-License-Identifier: Apache-2.0
"""The rail "verbs" beside others: joined, shared, lost and opened anew as they are, over a libibverbs that is not the
system's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.errors import TransportError
from netfold.host.opening.planes import Plane, RailSpec
from netfold.testing import on_every_rank
from support.hosts.loopback_rails import LoopbackPlanes, even, loopback_planes, loopback_rails
from support.hosts.verbs_jobs import VerbsJobs, fake_devices
from switch_support.ports import wait_for

pytestmark = [pytest.mark.needs("verbs"), pytest.mark.timeout(120), pytest.mark.slow]
WORLD = 3
LONG = 200_000
"""Elements of a call that is split."""


def exact(comms: list[Communicator], seed: int, size: int = LONG) -> None:
    """One sum of int32, in place, which must be right on every rank."""
    data = [np.random.default_rng([seed, rank]).integers(-1000, 1000, size, np.int32) for rank in range(WORLD)]
    want = np.sum(data, axis=0, dtype=np.int32)
    for got in on_every_rank(comms, lambda comm: comm.allreduce(data[comm.rank], out=data[comm.rank])):
        if isinstance(got, Exception):
            raise got
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("other", ["tcp", "innet"])
def test_a_nic_carries_its_share_beside_another_rail(other: Any) -> None:
    """Long sums are cut over both, short ones and other collectives work; explain names the NIC's rail."""
    with fake_devices(), loopback_rails(["verbs", other], WORLD) as comms:
        even(comms)
        for seed, size in enumerate((LONG, 100, 0, LONG)):
            exact(comms, seed, size)
        assert comms[0].rails is not None
        assert all(use.nbytes > LONG for use in comms[0].rails.use())
        assert f"50% verbs@a + 50% {other}@b" in comms[0].explain(4 * LONG)
        assert "sent by fake0" in comms[0].rails.track(0).describe(1 << 20)
        got = on_every_rank(comms, lambda comm: comm.broadcast(np.full(50_000, comm.rank), root=2))
        assert [int(data.min()) for data in got] == [2] * WORLD


def test_lanes_of_a_nic_have_the_jobs_width_and_what_it_cannot_goes_between_its_hosts() -> None:
    """A queue pair has one operation: sums in the job's 16 bits fold, others are made by the plane's hosts."""
    x = np.random.default_rng(3).standard_normal(LONG).astype(np.float32)
    with fake_devices(), loopback_rails(["verbs", "tcp"], WORLD, lane_bits=16) as comms:
        even(comms)
        for bits, most in ((None, 2e-2), (32, 1e-5)):
            got = on_every_rank(comms, lambda comm, bits=bits: comm.allreduce(x, lane_bits=bits))
            assert len({part.tobytes() for part in got}) == 1
            apart = np.abs(got[0] - 3 * x).max()
            assert apart < most
            assert bits == 32 or apart > 1e-5
        ends = np.full(LONG, 2**30, np.int32)
        with pytest.warns(RuntimeWarning, match=f"{LONG} of {LONG} elements of a saturating sum"):
            got = on_every_rank(comms, lambda comm: comm.allreduce(ends, saturate=True))
        assert all((part == 2**31 - 1).all() for part in got)


@pytest.mark.parametrize("after", [0, 3, 9])
def test_a_queue_pair_in_error_ends_its_rail_and_no_sum(after: int) -> None:
    """The other rail makes what is missing, in the same call, and the NIC's rail is opened anew under the next job."""
    with fake_devices(), loopback_planes(["tcp", "verbs"], WORLD) as fabric:
        comms = fabric.join()
        even(comms)
        jobs = service(fabric)
        jobs.lib.fake_break(jobs.pairs[1][0].out_qp, 1, after)
        exact(comms, 1)
        assert comms[0].rails is not None
        use = comms[0].rails.use()[1]
        assert (use.state, use.deaths) == ("down", 1)
        assert "is down: " in comms[0].explain(1 << 20)
        exact(comms, 2)

        def back() -> bool:
            exact(comms, 3)
            return [use.state for comm in comms if comm.rails for use in comm.rails.use()] == ["up"] * 2 * WORLD

        wait_for(back)
        exact(comms, 4)
        on_every_rank(comms, lambda comm: comm.close())


def service(fabric: LoopbackPlanes) -> VerbsJobs:
    """The job service of the plane with NICs."""
    (jobs,) = (jobs for jobs in fabric.jobs if isinstance(jobs, VerbsJobs))
    return jobs


def test_a_host_without_a_device_is_told_before_it_joins() -> None:
    """The error is that of rail="verbs" alone, with the command that helps."""
    rails = [RailSpec("tcp", Plane("127.0.0.1", "unix:/nowhere")), RailSpec("verbs", Plane("127.0.0.2", "unix:/none"))]
    with pytest.raises(TransportError, match=r"RDMA device|rdma_rxe"):
        Communicator.join("j", 0, 2, rails=rails[::-1])


@pytest.mark.parametrize("other", ["tcp", "innet"])
def test_a_group_folds_by_queue_pairs_of_its_own_on_the_plane_of_nics(other: Any) -> None:
    """Beside trees on another plane, or alone; every sum is exact, the job folds on, and a closed group gives its queue
    pairs back."""
    members = [2, 0]
    with fake_devices(), loopback_planes(["verbs", other], WORLD, groups=True) as planes:
        comms, service = planes.join(), planes.jobs[0]
        assert isinstance(service, VerbsJobs)
        try:
            before, two = service.lib.fake_pairs(), [comms[rank] for rank in members]
            groups = {rank: comms[rank].group(members) for rank in members}

            def work(comm: Communicator) -> str:
                for size in (LONG, 300, LONG):
                    total = groups[comm.rank].allreduce(np.full(size, comm.rank + 1, np.int32))
                    assert (total == 4).all()
                return comm.flight()[-1].path

            for path in on_every_rank(two, work):
                assert "verbs@a" in path or (other == "innet" and "innet@b" in path), path
            said = groups[0].explain(4 * LONG)
            assert "'rails+0#2-0.1' on verbs@a" in said
            assert ("'rails+1#2-0.1' on innet@b" in said) == (other == "innet")
            assert service.lib.fake_pairs() == before + 4 * len(members)
            for seed in range(2):
                exact(comms, seed)
            on_every_rank(two, lambda comm: groups[comm.rank].close())
            assert service.left == ["rails+0#2-0.1"] * 2
            assert service.lib.fake_pairs() == before
        finally:
            on_every_rank(comms, lambda comm: comm.close())
