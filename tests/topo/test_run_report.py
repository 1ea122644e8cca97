# SPDX-License-Identifier: Apache-2.0
"""What `netfold run` says at its end of what the network carried."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec
import pytest
from msgspec.structs import replace

from netfold.fabric.generate import leafspine
from netfold.topo.run_report import RunReport, summary
from netfold.wire.jobs import RankReport
from netfold.wire.operator import SERVICE, JobStatus, LinkStatus, Status, Traffic

HOSTS = ["h1", "h2", "h3", "h4"]


def status(jobs: list[JobStatus], carried: int = 0) -> Status:
    """A fabric each of whose hosts has sent and got so many bytes."""
    way = Traffic(0, carried, 0)
    links = [LinkStatus(f"{host}:0", f"leaf1:{port}", None, 0.0, way, way) for port, host in enumerate(HOSTS)]
    links.append(LinkStatus("leaf1:9", "spine1:1", None, 0.0, Traffic(0, 10**12, 0), Traffic(0, 10**12, 0)))
    return Status("lab", "softswitch", 1.0, [], links, jobs)


def job(name: str, epoch: int, reports: list[RankReport], state: str = "finished") -> JobStatus:
    return JobStatus(name, state, epoch, 4, [0, 1, 2, 3], [], [], 1, [], "", reports)


def report(rank: int, trees: dict[str, int], *, name: str = "run", again: int = 0) -> RankReport:
    return RankReport(name, rank, 1, 100, sum(trees.values()), 9, again, trees)


def test_the_sum_of_a_run_names_operations_trees_repeats_and_what_a_ring_sends() -> None:
    """Bytes are those of each rank, links those of its host alone; an earlier job of the name counts for nothing."""
    earlier = job("run", 1, [report(0, {"spine9": 7})])
    ours = job("run", 2, [report(rank, {"spine1": 30_000_000, "spine2": 25_000_000}, again=rank) for rank in range(4)])
    said = summary("run", HOSTS, [status([earlier], 5_000_000)], [status([earlier, ours], 62_000_000)])
    assert said == ("4 ranks, 100 operations, 55 MB of each rank folded by spine1 and spine2, 6 packets sent again, "
                    "each host's links 57 MB each way, where a ring sends 82 MB")


def test_what_another_job_sent_is_not_counted_as_ours() -> None:
    """Beside another job, and where several ranks share a host, nothing is said of links."""
    ours, other = job("run", 2, [report(0, {"spine1": 8})]), job("other", 3, [], "active")
    assert "links" not in summary("run", HOSTS, [status([])], [status([ours, other])])
    assert "links" not in summary("run", ["h1", "h1"], [status([])], [status([ours])])
    assert "links" in summary("run", HOSTS, [status([])], [status([ours])])


def test_what_every_plane_folded_is_counted() -> None:
    """The job of a rail after the first is named after the run's; each rail has reported the operations of all."""
    carried = {"innet@a": 40_000_000, "innet@b": 8_000_000}
    ours = job("run", 1, [replace(report(0, {"aspine1": 40_000_000}), operations=60, by_rail=carried)])
    second = job("run+1", 1, [replace(report(0, {"bspine1": 8_000_000}), by_rail=carried)])
    said = summary("run", ["h1"], [status([]), status([])], [status([ours]), status([second])])
    assert said == "1 rank, 100 operations, 48 MB of each rank folded by aspine1 and bspine1, 0 packets sent again"


def test_the_operations_of_each_program_that_joined_are_counted_once() -> None:
    """The first rail of each has a job of the run's name, whatever the later lives of a rail have reported."""
    carried = {"innet@a": 4, "innet@b": 4}
    lives = [job(name, epoch, [replace(report(0, {}), operations=count, by_rail=carried)])
             for name, epoch, count in (("run", 1, 40), ("run+1", 1, 70), ("run.2", 2, 70), ("run", 3, 50))]
    assert "90 operations" in summary("run", ["h1"], [status([])], [status(lives)])


def test_the_standby_is_asked_once_the_controller_is_dead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that spans a takeover still says what the network has carried."""
    fabric = replace(leafspine(1, 0, 2, rundir=tmp_path), standby=f"unix:{tmp_path}/standby.sock")
    answers = iter([status([]), status([job("run", 1, [report(0, {"leaf1": 8})])])])
    handlers = {"Status": grpc.unary_unary_rpc_method_handler(lambda data, _: msgspec.json.encode(next(answers)))}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    assert fabric.standby is not None
    server.add_insecure_port(fabric.standby)
    server.start()
    try:
        told = RunReport("run")
        told.begins([fabric], ["h1"])
        told.ended([fabric], ["h1"])
    finally:
        server.stop(None)
    assert "1 rank, 100 operations, 0.0 MB of each rank folded by leaf1" in capsys.readouterr().err


def test_ranks_that_fold_nothing_or_never_joined_are_told_so() -> None:
    """A program that goes over TCP, and one that does not use NetFold, do not look like one that folds."""
    ours = job("run", 1, [report(0, {})])
    assert "nothing folded by switches" in summary("run", HOSTS, [status([])], [status([ours])])
    assert summary("run", ["h1"], [status([])], [status([])]) == "1 rank; none of them joined the job 'run'"


def test_each_plane_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Planes of one description have one name until they start, and letters."""
    RunReport("run").starting([leafspine(1, 0, 2)] * 2)
    assert capsys.readouterr().err.splitlines() == [
        f"netfold: run: leafspine-1-0-2, plane {plane}: starting 1 switch (softswitch) and 2 hosts" for plane in "ab"]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """With --quiet neither stages nor the sum are printed."""
    RunReport("run", quiet=True).say("x")
    RunReport("run").say("y")
    assert capsys.readouterr() == ("", "netfold: run: y\n")
