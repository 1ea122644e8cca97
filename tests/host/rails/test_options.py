# SPDX-License-Identifier: Apache-2.0
"""Every option that one rail takes, several take or refuse by name: each parameter of join and allreduce and each
variable has a row in docs/rails.md and a check here, so that a new one is not forgotten."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.api.group import Group
from netfold.host.errors import CollectiveTimeout, TransportError
from netfold.host.innet import quantise
from netfold.host.opening import planes
from netfold.host.opening.planes import RailSpec
from netfold.host.rails import open_rail
from netfold.testing import on_every_rank
from support.hosts.collectives import same
from support.hosts.host import impatient
from support.hosts.loopback_rails import carried, even, loopback_planes, loopback_rails

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parents[3]
ASIDE = {"cls", "self", "job", "rank", "world", "array"}
"""Parameters that are no options."""


def documented(heading: str) -> set[str]:
    """The names in the first column of the table under a heading of docs/rails.md."""
    text = (REPOSITORY / "docs" / "rails.md").read_text().partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    return {name for line in text.splitlines() if line.startswith("| `")
            for name in re.findall(r"`(\w+)`", line.split("|")[1])}


def summed(comms: list[Communicator], call: Callable[[Communicator], Any]) -> Any:
    """The value of ``call`` on each rank, the same on all."""
    return same(on_every_rank(comms, call))


# ---- what join takes -------------------------------------------------------------------------------------------------
NOWHERE = [RailSpec(kind, planes.Plane(f"10.{n}.0.1", f"unix:/nowhere/{n}"))  # type: ignore[arg-type]
           for n, kind in ((1, "innet"), (2, "tcp"))]


def refused(match: str, **asked: Any) -> None:
    """Joining is refused before anything is sent."""
    with pytest.raises(ValueError, match=match):
        Communicator.join("j", 0, 2, rails=NOWHERE, **asked)


def address_is_of_a_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(r"address='10\.3\.0\.1': expected none, or one of those on the planes, 10\.1\.0\.1, ", address="10.3.0.1")
    with pytest.raises(TransportError, match=r"cannot listen on 10\.1\.0\.1"):
        Communicator.join("j", 0, 2, rails=NOWHERE, address="10.2.0.1")


def controller_is_of_a_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("controller='unix:/other': expected none, or one of the planes'", controller="unix:/other")


def one_rail_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("rail= and rails= both given", rail="tcp")


def helpers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("helpers add for the others on one rail; use rail='tcp' alone", helpers=[1])


def timeout_ends_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with loopback_rails(["innet", "tcp"], 2, timeout=100) as comms:
        assert [comm.rails.detector.timeout for comm in comms] == [100, 100]  # type: ignore[union-attr]
        impatient(comms, 0.5)
        with pytest.raises(CollectiveTimeout, match="rank 1"):
            comms[0].allreduce(np.zeros(10, np.float32))


def joins_say(name: str, value: object, **asked: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Each plane's controller is told so."""

    def check(monkeypatch: pytest.MonkeyPatch) -> None:
        with loopback_planes(["innet", "tcp"], 2) as fabric:
            for comm in fabric.join(**asked):
                comm.close()
            for jobs in fabric.jobs:
                for join in jobs.joins.values():
                    got = getattr(join, name)
                    assert got == value or (isinstance(value, float) and value - 60 < got <= value)

    return check


def algorithm_is_of_the_meshes(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("algorithm='innet'.*tcp@10.2.0.1 cannot fold", algorithm="innet")
    refused(r"algorithm='rings' \(argument or NETFOLD_ALGO\): expected one of auto, ", algorithm="rings")
    with loopback_rails(["innet", "tcp"], 2, algorithm="ring") as comms:
        assert comms[0].rails is not None
        for rail in (0, 1):
            track = comms[0].rails.track(rail)
            assert isinstance(track, open_rail.OpenRail)
            assert track.others.algorithm == "ring"
    with loopback_rails(["innet", "innet"], 2, algorithm="innet") as comms:
        assert summed(comms, lambda comm: comm.allreduce(np.ones(9, np.int32)))[0] == 2


def token_goes_to_every_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    client = open_rail.JobClient
    monkeypatch.setattr(
        open_rail, "JobClient", lambda controller, token: told.append(token) or client(controller)  # type: ignore
    )
    with loopback_rails(["innet", "tcp"], 2, token="a-token-of-the-fabric"):
        assert told == ["a-token-of-the-fabric"] * 4


def rails_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_PLANES", "a=10.0.0.1@unix:/a")
    with pytest.raises(ValueError, match=r"rail 'ib@a': expected KIND@PLANE with one of innet, verbs, tcp, roce and"):
        Communicator.join("j", 0, 2, rails="ib@a+tcp@a")


def a_loss_is_of_all_rails(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/host/rails/test_changes.py has the losses."""
    with loopback_rails(["tcp", "tcp"], 2, on_loss="shrink") as comms:
        assert all(comm.repeats_losses for comm in comms)
        exactly(comms)


def paths_are_of_every_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("paths='sprayed'", paths="sprayed")
    refused("paths='reps'.*a TCP connection cannot take a source port for each packet", paths="reps")
    asked: list[object] = []
    opened = open_rail.open_mesh

    def opening(*given: Any, **named: Any) -> Any:
        asked.append(given[-1])
        return opened(*given, **named)

    monkeypatch.setattr(open_rail, "open_mesh", opening)
    with loopback_rails(["tcp", "tcp"], 2, paths="hashed"):
        assert asked == ["hashed"] * 4


def reproducible_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    with loopback_rails(["innet", "tcp"], 2, reproducible=True) as comms:
        assert comms[0].reproducible
        even(comms)
        exactly(comms)


JOIN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "address": address_is_of_a_plane,
    "controller": controller_is_of_a_plane,
    "timeout": timeout_ends_a_call,
    "join_timeout": joins_say("timeout", 700.0, join_timeout=700.0),
    "rail": one_rail_or_several,
    "lane_bits": joins_say("lane_bits", 16, lane_bits=16),
    "algorithm": algorithm_is_of_the_meshes,
    "helpers": helpers_are_refused,
    "path_mtu": joins_say("path_mtu", 1024, path_mtu=1024),
    "token": token_goes_to_every_plane,
    "rails": rails_are_told_apart,
    "reproducible": reproducible_by_default,
    "paths": paths_are_of_every_mesh,
    "on_loss": a_loss_is_of_all_rails,
}


@pytest.mark.parametrize("option", [*inspect.signature(Communicator.join).parameters])
def test_each_option_of_join_works_over_several_rails_or_is_refused(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is dropped: what it is, both rails do, or the caller is told before anything is sent."""
    if option not in ASIDE:
        assert option in documented("Options of `Communicator.join`"), "a row in docs/rails.md says what it means"
        JOIN[option](monkeypatch)


# ---- what allreduce takes --------------------------------------------------------------------------------------------
X = np.random.default_rng(5).standard_normal(200_000).astype(np.float32)


def plain(comms: list[Communicator]) -> None:
    out = [np.empty_like(X) for _ in comms]
    total = summed(comms, lambda comm: comm.allreduce(X, out[comm.rank]))
    assert total is out[0]
    np.testing.assert_allclose(total, 2 * X, atol=1e-6)


def operations(comms: list[Communicator]) -> None:
    for op, want in (("average", X * 1.5), ("max", np.maximum(X, 2 * X)), ("product", X * X * 2)):
        got = summed(comms, lambda comm, op=op: comm.allreduce(X * np.float32(comm.rank + 1), op=op))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def halves(comms: list[Communicator]) -> None:
    bits = (X.view(np.uint32) >> 16).astype(np.uint16)
    got = summed(comms, lambda comm: comm.allreduce(bits, dtype="bfloat16"))
    twice = (bits.astype(np.uint32) << 16).view(np.float32) * 2
    np.testing.assert_array_equal((got.astype(np.uint32) << 16).view(np.float32), twice)


def named_algorithms(comms: list[Communicator]) -> None:
    got = summed(comms, lambda comm: comm.allreduce(X, algorithm="ring"))
    np.testing.assert_allclose(got, 2 * X, atol=1e-6)
    with pytest.raises(ValueError, match=r"algorithm='innet' over innet@a\+tcp@b: tcp@b cannot fold"):
        comms[0].allreduce(X, algorithm="innet")


def names(comms: list[Communicator]) -> None:
    summed(comms, lambda comm: comm.allreduce(X, name="bucket 3"))
    assert comms[0].flight()[-1].name == "bucket 3"


def narrow_lanes(comms: list[Communicator]) -> None:
    before, packets = carried(comms), comms[0].stats().packets_sent
    got = summed(comms, lambda comm: comm.allreduce(X, lane_bits=8))
    after = carried(comms)
    assert all(now > then for now, then in zip(after, before, strict=True)), "each rail has a part"
    apart = np.abs(got - 2 * X)
    step = 2 * np.abs(X).max() / quantise.levels(2, 8)
    assert 1e-3 < apart.max() <= step
    assert np.count_nonzero(apart > 1e-6) * 4 <= after[0] - before[0], "tcp@b carries floats whole"
    assert comms[0].stats().packets_sent - packets < (after[0] - before[0]) / 1024 / 2, "four to a lane of 32 bits"


def rounding(comms: list[Communicator]) -> None:
    half = np.full(100_000, 0.5, np.float32)
    half[::256] = 1.0  # each block's largest: 0.5 lies between two levels
    for how in ("stochastic", "nearest"):
        got = summed(comms, lambda comm, how=how: comm.allreduce(half, lane_bits=8, rounding=how))
        kinds = len(np.unique(got[half == 0.5]))
        assert kinds <= 2 if how == "nearest" else kinds > 2


def feedback(comms: list[Communicator]) -> None:
    def train(comm: Communicator) -> Any:
        residual, total = np.zeros_like(X), np.zeros_like(X)
        for _ in range(10):
            total += comm.allreduce(X, lane_bits=8, feedback=residual)
        return total + 2 * residual  # both ranks have the same residual

    np.testing.assert_allclose(summed(comms, train), 20 * X, atol=1e-3)


def saturation(comms: list[Communicator]) -> None:
    many = np.full(200_000, 3, np.int32)
    many[[5, 1000, 199_999]] = 2**31 - 2
    few = many[:2000]
    before = comms[0].stats().saturated
    for array, times in ((many, 3), (few, 2)):
        with pytest.warns(RuntimeWarning, match=f"{times} of {array.size} elements of a saturating sum"):
            got = summed(comms, lambda comm, array=array: comm.allreduce(array, saturate=True))
        np.testing.assert_array_equal(got, np.minimum(2 * array.astype(np.int64), 2**31 - 1))
    assert [comm.stats().saturated - before for comm in comms] == [5, 5]


def exactly(comms: list[Communicator], **asked: Any) -> None:
    parts = [X, np.roll(X, 1) * np.float32(1e-5)]
    want = (parts[0].astype(np.float64) + parts[1]).astype(np.float32)
    got = summed(comms, lambda comm: comm.allreduce(parts[comm.rank], **asked))
    np.testing.assert_array_equal(got, want)


ALLREDUCE: dict[str, Callable[[list[Communicator]], None]] = {
    "out": plain,
    "op": operations,
    "dtype": halves,
    "algorithm": named_algorithms,
    "name": names,
    "lane_bits": narrow_lanes,
    "rounding": rounding,
    "feedback": feedback,
    "saturate": saturation,
    "reproducible": lambda comms: exactly(comms, reproducible=True),
}


@pytest.fixture(scope="module")
def mixed() -> Iterator[list[Communicator]]:
    """Ranks with a rail that folds and one that does not, which share alike."""
    with loopback_rails(["innet", "tcp"], 2) as comms:
        even(comms)
        yield comms


@pytest.mark.parametrize("option", [*inspect.signature(Group.allreduce).parameters])
def test_each_option_of_allreduce_works_over_several_rails_or_is_refused(
    option: str, mixed: list[Communicator]
) -> None:
    """Over a rail that folds and one that does not at once; what the second cannot it does at full width."""
    if option not in ASIDE:
        assert option in documented("Options of `allreduce`"), "a row in docs/rails.md says what it means"
        ALLREDUCE[option](mixed)


def test_lanes_over_rails_that_fold_are_the_bits_of_one_rail() -> None:
    """Cuts lie between blocks that share a scale: rounded to the nearest, no split changes a bit."""
    for bits in (16, 8):
        with loopback_rails(["innet", "innet"], 2, lane_bits=bits) as comms:
            even(comms)
            split = summed(comms, lambda comm: comm.allreduce(X * np.float32(comm.rank + 0.3), rounding="nearest"))
            assert min(carried(comms)) > 0
            assert comms[0].lanes() == bits
            for comm in comms:
                assert comm.rails is not None
                comm.rails.pin(1)
            alone = summed(comms, lambda comm: comm.allreduce(X * np.float32(comm.rank + 0.3), rounding="nearest"))
            assert split.tobytes() == alone.tobytes()


def test_what_carries_floats_whole_is_said_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log names the rails without narrow lanes, and explain() does; too many ranks are refused."""
    with caplog.at_level(logging.WARNING), loopback_rails(["innet", "tcp"], 2, lane_bits=8) as comms:
        assert "floats go between the hosts whole over tcp@b" in caplog.text
        assert "in lanes of 8 bits (tcp@b: of 32)" in comms[0].explain(1 << 20)
        assert "in lanes of" not in comms[0].explain(1 << 20, dtype="int32")


# ---- the environment -------------------------------------------------------------------------------------------------
def test_each_variable_that_the_library_reads_is_in_the_table() -> None:
    """A variable that host/ reads has a row that says what it means for several rails."""
    found = {name for room in ("host", "rpc") for path in (REPOSITORY / room).rglob("*.py")
             for name in re.findall(r'"(NETFOLD_[A-Z_]+)"', path.read_text())}
    assert found - documented("Variables") == set()


def test_open_pairs_and_planned_paths_are_those_of_one_rail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rail over queue pairs is opened as it is alone: $NETFOLD_OPEN_PAIRS holds for it."""
    monkeypatch.setenv("NETFOLD_OPEN_PAIRS", "0")
    with pytest.raises(ValueError, match="0"), loopback_rails(["roce", "tcp"], 2):
        pass


def test_credits_are_those_of_every_rail_that_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """$NETFOLD_CREDITS bounds the messages of each rail's own queue pairs."""
    monkeypatch.setenv("NETFOLD_CREDITS", "2x4")
    with loopback_rails(["innet", "innet"], 2) as comms:
        assert comms[0].rails is not None
        for rail in (0, 1):
            assert "2 messages of 4" in comms[0].rails.track(rail).describe(1 << 20)
        even(comms)
        np.testing.assert_allclose(summed(comms, lambda comm: comm.allreduce(X)), 2 * X, atol=1e-6)


def test_statistics_are_told_by_the_rail_that_a_tree_is_of() -> None:
    """Trees of two planes may share a name; retransmissions and packets are those of all rails."""
    with loopback_rails(["innet", "innet"], 2) as comms:
        even(comms)
        summed(comms, lambda comm: comm.allreduce(X))
        stats = comms[0].stats()
        assert set(stats.by_tree) == {"innet@a/loop", "innet@b/loop"}
        assert stats.packets_sent == sum(tree.packets_sent for tree in stats.by_tree.values())
        assert stats.retransmissions == sum(tree.retransmissions for tree in stats.by_tree.values())
