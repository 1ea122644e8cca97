# SPDX-License-Identifier: Apache-2.0
"""`netfold bench soak`: a short round with strangers, dead controllers and a full disk; and which faults are drawn."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from netfold.bench.commands import soak
from netfold.bench.harness import schedule
from netfold.bench.harness.stranger import StrangerTask, said, spoiled
from netfold.bench.options.faults import MOST_FAULTS, SoakOptions
from netfold.bench.ranks import soak as rank_soak
from netfold.fabric.generate import leafspine
from support import needs
from support.sandboxes.topo import in_sandbox

HOSTILE = ("controller", "standby", "spoof", "flood", "mesh", "service", "disk")


class Recorder:
    """Stands in for whatever faults happen to: remembers the names of the methods that steps call."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self._said.append(" ".join([name, *map(str, args[:1])]))


def drawn(kinds: tuple[schedule.Fault, ...], seed: int, number: int) -> tuple[list[schedule.FaultStep], list[str]]:
    """The steps of a round with four ranks, and what they have called once all have been taken."""
    called: list[str] = []
    recorder: Any = Recorder(called)
    recorder.network = SimpleNamespace(fabric=leafspine(2, 2, 5))
    ranks: Any = SimpleNamespace(processes=[recorder] * 4)
    victims = schedule.Victims(recorder, ranks, recorder, recorder, recorder)
    steps = schedule.schedule(random.Random(seed), kinds, victims, number, lambda: called.append("over"))
    for step in steps:
        step.do()
    return steps, called


@pytest.mark.parametrize("seed", range(20))
def test_every_fault_of_a_round_is_undone_before_its_end(seed: int) -> None:
    """Switches are started, links up, disks have room, attacks end, and a controller runs; then ``over``."""
    steps, called = drawn(tuple(schedule.FAULTS), seed, MOST_FAULTS)
    counts = Counter(name.partition(" ")[0] for name in called)
    assert counts["fill"] == counts["clear"] == 1
    assert counts["begin"] == counts["end"] == 4
    assert counts["kill"] - 1 + counts["restart"] == 4, "two spines and two leaves, and the controller"
    assert counts["start"] == counts["kill"] - 1 + 2, "killed switches, and a controller after each death"
    assert counts["link_down"] == counts["link_up"]
    assert counts["blackhole"] == counts["end_blackhole"]
    assert called[-1] == "over"
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    controllers = [step.name for step in steps if "controller" in step.name]
    assert controllers[1::2] == ["controller started"] * 2, "no controller is killed while there is none"


def test_only_faults_that_are_asked_for_are_drawn() -> None:
    """A seed draws the same steps again; where no victims are left the round has fewer faults."""
    steps, called = drawn(("disk", "service"), 3, 10)
    assert sorted(called[:-1]) == ["begin service", "clear", "end service", "fill"]
    assert [step[:2] for step in steps] == [step[:2] for step in drawn(("disk", "service"), 3, 10)[0]]


@pytest.mark.parametrize(("option", "value", "message"), [
    ("faults", "spine,fire", "--faults fire: expected some of spine"),
    ("per_round", 100, "--per-round 100: expected 1 .. "),
    ("rounds", 0, "--rounds 0: expected 1 or more"),
    ("seconds", -1, "--seconds -1: expected 0 or more"),
    ("seconds", float("inf"), "--seconds inf: expected 0 or more, and a finite number"),
])
def test_wrong_options_are_named(option: str, value: object, message: str) -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match=message):
        SoakOptions(**{option: value})


def test_links_and_tensors_are_what_the_switches_carry() -> None:
    """Where the options say nothing, BMv2 gets slower links and shorter tensors, and all kinds of faults are drawn."""
    usual = {switch: SoakOptions(switch=switch) for switch in ("softswitch", "bmv2")}
    assert [(one.rate, one.elements) for one in usual.values()] == [("1gbit", 200_000), ("50mbit", 8_000)]
    assert SoakOptions(rate="2gbit").rate == "2gbit"
    assert usual["bmv2"].faults.split(",") == [*schedule.FAULTS]


def test_a_strangers_requests_follow_from_its_seed() -> None:
    """So that a failed round's seed repeats them."""
    task = StrangerTask("service", 5, 1.0, 100, "10.0.1.3", "soak")

    def requests() -> list[bytes]:
        rng = random.Random(task.seed)
        return [rng.choice([said, spoiled])(task, rng) for _ in range(200)]

    assert requests() == requests()
    assert len(set(requests())) > 100


class Stopped:
    """The communicator of a job of one rank, whose sums take a second.  The exchange after sum 16 takes a minute, and
    then all is over."""

    rank, size = 0, 1
    plan = SimpleNamespace(round=0)

    def __init__(self, over: Path) -> None:
        self.now, self._over, self._exchanges = 0.0, over, 0

    def __enter__(self) -> Stopped:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def allreduce(self, array: Any, out: Any = None) -> Any:
        self.now += 1.0
        return out

    def all_to_all(self, array: Any) -> Any:
        self._exchanges += 1
        if self._exchanges == 5:
            self.now += 60.0
            self._over.touch()
        return array

    def stats(self) -> Any:
        return SimpleNamespace(retransmissions=0, packets_refused=0, packets_unfolded=0)


def test_what_stops_an_exchange_is_in_the_longest_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time of an exchange counts as that of the sum before it: a fabric without paths stops both."""
    comm = Stopped(tmp_path / "over")
    monkeypatch.setattr("netfold.init", lambda **_: comm)
    monkeypatch.setattr(rank_soak, "time", SimpleNamespace(monotonic=lambda: comm.now))
    rank_soak.rank(rank_soak.SoakTask(1, 10, str(tmp_path / "over")))
    started, result = capsys.readouterr().out.splitlines()
    assert started == rank_soak.STARTED
    took = msgspec.json.decode(result, type=rank_soak.SoakResult)
    assert (took.operations, took.longest) == (17, 61.0)


@pytest.mark.timeout(200)
@in_sandbox(timeout=180)
def test_a_round_with_strangers_dead_controllers_and_a_full_disk(tmp_path: Path) -> None:
    """Every sum is right on all ranks, all attacks were tried, and the switches have counted what they dropped."""
    pytest.importorskip("mininet.net", reason=needs.reason("mininet"))
    options = SoakOptions(rounds=1, faults=",".join(HOSTILE), per_round=len(HOSTILE), elements=20_000, seed=4,
                          logs=tmp_path / "failed", rows=tmp_path / "soak.json")
    (result,) = soak.run(options)
    assert result.failed == ""
    assert min(took.operations for took in result.ranks) > 10
    assert {"spoof", "flood", "mesh", "service", "controller", "standby", "flight"} <= set(result.tried)
    assert min(result.tried[attack] for attack in ("spoof", "flood", "mesh", "service")) > 0
    assert min(result.tried[met] for met in ("challenged", "refused", "replayed")) > 0, "it speaks to no rank's mesh"
    assert result.dropped["spoofed"] > 0
    assert result.dropped["punts refused"] > 0
    assert msgspec.json.decode((tmp_path / "soak.json").read_bytes(), type=list[soak.SoakRound]) == [result]
