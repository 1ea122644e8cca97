# SPDX-License-Identifier: Apache-2.0
"""When a standby takes over, and when it does not; and what it hears from a switch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import grpc
import msgspec
import pytest
from finsy.proto import p4r, rpc_code
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.controller import standby as module
from netfold.controller.heartbeat import Health, Heartbeat
from netfold.controller.standby import Standby
from netfold.controller.switch import observer as observing
from netfold.controller.switch.election import Elections
from netfold.controller.switch.observer import Observer
from netfold.fabric import file as fabric_file
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import FabricError, Switch
from netfold.rpc.certificates import Certificates
from support.control.controller import BOUND, ScriptedServer, until
from switch_support.addresses import free_port
from switch_support.certificates import Authority

KEY = b"k" * 32


class Scripted(Observer):
    """An observer that sees what a test says."""

    def __init__(self, switch: Switch, on_change: Callable[[], None]) -> None:
        super().__init__(switch.name, switch.grpc, switch.device_id, lambda: None, lambda: 1, on_change)

    async def run(self) -> None:
        """See nothing by itself."""
        await asyncio.Event().wait()

    def sees(self, primary: bool | None) -> None:
        """From now on the switch has a primary of the fabric, or none; None: it says nothing."""
        self._set(Elections(KEY, self._device_id).above(0) if primary else None if primary is None else 0)

    def is_looked_at(self) -> None:
        """A client of this fabric that only looks becomes primary."""
        self._set(Elections(KEY, self._device_id).looking())

    def is_taken(self, number: int) -> None:
        """A stranger becomes primary by this election id."""
        self._set(number)


class Beats(Heartbeat):
    """A test's statements about the first controller; none at first."""

    said: Health = "unknown"

    @property
    def health(self) -> Health:
        return self.said

    async def run(self) -> None:
        """Hear nothing by itself."""
        await asyncio.Event().wait()

    def says(self, health: Health) -> None:
        """From now on this is known."""
        self.said = health
        self._on_change()


def standby(folder: Path) -> tuple[Standby, dict[str, Scripted]]:
    """The standby of a 2x2x4 fabric, and its observers by switch."""
    key = folder / "fabric.key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    fabric = msgspec.structs.replace(leafspine(2, 2, 4, rundir=folder), standby=f"unix:{folder}/standby.sock",
                                     fabric_key_file=str(key))
    observers: dict[str, Scripted] = {}

    def observe(switch: Switch, on_change: Callable[[], None]) -> Observer:
        return observers.setdefault(switch.name, Scripted(switch, on_change))

    return Standby(fabric, observe=observe, beats=Beats), observers


async def watching(
    folder: Path, primary: bool | None = None
) -> tuple[Standby, dict[str, Scripted], asyncio.Task[set[str]]]:
    """`standby`, and its wait, which has begun; ``primary``: all switches have one, or none has."""
    waiting, observers = standby(folder)
    gone = asyncio.create_task(waiting.wait())
    await idle()
    if primary is not None:
        for observer in observers.values():
            observer.sees(primary)
        await idle()
    return waiting, observers, gone


async def idle() -> None:
    """Let everything happen that is due."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller is dead at once; one that was never there is waited for."""
    monkeypatch.setattr(module, "SETTLE", 0.0)
    monkeypatch.setattr(module, "PATIENCE", 3600.0)


async def test_it_takes_over_when_most_switches_have_no_primary(tmp_path: Path) -> None:
    """The one that makes them more than half decides."""
    _, observers, gone = await watching(tmp_path, True)
    for name in ("leaf1", "leaf2"):
        observers[name].sees(False)
    await idle()
    assert not gone.done()
    observers["spine1"].sees(False)
    assert await gone == {"leaf1", "leaf2", "spine1", "spine2"}


async def test_what_is_seen_in_the_turn_in_which_the_wait_ends_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop stood still while a new controller took all switches: the standby takes none."""
    waiting, observers = standby(tmp_path)
    loop = asyncio.get_running_loop()
    ahead, real = [0.0], loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + ahead[0])
    monkeypatch.setattr(module, "SETTLE", BOUND / 4)
    gone = asyncio.create_task(waiting.wait())
    await idle()
    for seen in (True, False):
        for observer in observers.values():
            observer.sees(seen)
        await idle()

    def stand_still() -> None:
        ahead[0] = BOUND / 2
        for observer in observers.values():
            loop.call_soon(observer.sees, True)

    loop.call_soon(stand_still)
    await idle()
    assert not gone.done()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)


async def test_who_only_looks_is_no_primary(tmp_path: Path) -> None:
    """It takes the switches over, and knows the last controller's election ids."""
    _, observers, gone = await watching(tmp_path, True)
    last = {name: observer.primary for name, observer in observers.items()}
    for observer in observers.values():
        observer.is_looked_at()
    assert await gone == {"leaf1", "leaf2", "spine1", "spine2"}
    assert {name: observer.last for name, observer in observers.items()} == last


async def test_strangers_keep_it_from_nothing(tmp_path: Path) -> None:
    """Neither one with the highest election id of all, without whose switch it starts, nor one that repeats the dead
    controller's id; while the controller is there, they are none of its business."""
    _, observers, gone = await watching(tmp_path)
    for observer in observers.values():
        observer.sees(True)
    observers["leaf1"].is_taken((1 << 128) - 1)
    observers["leaf2"].is_taken(7)
    await idle()
    assert not gone.done()
    observers["spine1"].sees(False)  # and an id of the dead controller is repeated on spine2
    assert await gone == {"spine1", "spine2"}


@pytest.mark.parametrize("health", ["hung", "gone"])
async def test_it_takes_over_from_a_controller_that_hangs(tmp_path: Path, health: Health) -> None:
    """Though all switches have it as their primary; one that can reach half of them only does not."""
    waiting, observers, task = await watching(tmp_path)
    for name in ("leaf1", "leaf2"):
        observers[name].sees(True)
    assert isinstance(waiting.heartbeat, Beats)
    waiting.heartbeat.says(health)
    await idle()
    assert not task.done()
    observers["spine1"].sees(True)
    assert await task == {"leaf1", "leaf2", "spine1"}


async def test_a_controller_that_is_at_work_may_lose_all_switches_to_strangers(tmp_path: Path) -> None:
    """It claims them again itself; where it has lost most of them to nobody, it is cut off."""
    waiting, observers, task = await watching(tmp_path)
    assert isinstance(waiting.heartbeat, Beats)
    waiting.heartbeat.says("alive")
    for observer in observers.values():
        observer.is_taken(1 << 127)
    await idle()
    assert not task.done()
    for name in ("leaf1", "leaf2", "spine1"):
        observers[name].sees(False)
    assert await task == {"leaf1", "leaf2", "spine1"}


async def test_a_switch_that_is_down_does_not_keep_it_from_that(tmp_path: Path) -> None:
    """It is not among those that the new controller needs to start."""
    _, observers, gone = await watching(tmp_path, True)
    observers["spine1"].sees(None)
    await idle()
    for name in ("leaf1", "leaf2", "spine2"):
        observers[name].sees(False)
    assert await gone == {"leaf1", "leaf2", "spine2"}


async def test_a_standby_that_is_cut_off_takes_nothing(tmp_path: Path) -> None:
    """It reaches half of the switches, or none: the first controller may well be there."""
    _, observers, gone = await watching(tmp_path, True)
    for name in ("leaf1", "leaf2"):
        observers[name].sees(None)
    for name in ("spine1", "spine2"):
        observers[name].sees(False)
    await idle()
    assert not gone.done()
    for observer in observers.values():
        observer.sees(None)
    await idle()
    assert not gone.done()
    gone.cancel()


async def test_a_first_controller_that_is_still_starting_is_waited_for(tmp_path: Path) -> None:
    """No switch has had a primary yet: nobody has died."""
    _, _, gone = await watching(tmp_path, False)
    assert not gone.done()
    gone.cancel()


def test_it_serves_at_its_own_address_and_knows_the_first_ones(tmp_path: Path) -> None:
    """Ranks learn both; a fabric without the setting has no standby."""
    waiting, _ = standby(tmp_path)
    first = leafspine(2, 2, 4, rundir=tmp_path)
    assert (waiting.fabric.jobs, waiting.fabric.standby) == (f"unix:{tmp_path}/standby.sock", first.jobs)
    with pytest.raises(FabricError, match=r"fabric\.standby: expected the address"):
        Standby(first)


@pytest.mark.parametrize(("code", "seen"), [
    (rpc_code.ALREADY_EXISTS, 2**64 + 5),
    (rpc_code.NOT_FOUND, 0),  # softswitch: nobody is
    (rpc_code.OK, 0),  # BMv2: then this one is
])
async def test_a_switch_says_at_once_what_has_become_of_its_primary(tmp_path: Path, code: int, seen: int) -> None:
    """By an arbitration update on the stream; when the switch goes, nothing is known."""
    server = ScriptedServer()
    server.primary = 2**64 - 1
    running = await server.serve(f"unix:{tmp_path}/s.sock")
    changed = asyncio.Event()
    observer = Observer("leaf1", f"unix:{tmp_path}/s.sock", 1, lambda: None, lambda: 1, changed.set)
    task = asyncio.create_task(observer.run())
    await until(lambda: observer.primary == 2**64 - 1)
    update = p4r.StreamMessageResponse()
    update.arbitration.status.code = code
    update.arbitration.election_id.high, update.arbitration.election_id.low = 1, 5
    await server.to_send.put(update)
    await until(lambda: observer.primary == seen)
    assert changed.is_set()
    await running.stop(None)
    await until(lambda: observer.primary is None)
    assert observer.last == (seen or 2**64 - 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_switch_whose_certificate_was_renewed_is_still_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files are read for each connection, and again after a while without one; the log says once which switch the
    standby does not see."""
    monkeypatch.setattr(observing, "RETRY", 0.01)
    monkeypatch.setattr(observing, "WAIT", BOUND)
    before, after, ca = Authority(tmp_path, "before"), Authority(tmp_path, "after"), tmp_path / "ca.pem"
    ca.write_bytes(before.certificate.read_bytes())
    fabric = msgspec.structs.replace(
        leafspine(1, 0, 1, rundir=tmp_path), standby=f"unix:{tmp_path}/standby.sock", p4runtime_ca=str(ca),
        fabric_key_file=str(tmp_path / "fabric.key"))
    address = f"127.0.0.1:{free_port()}"
    fabric = msgspec.structs.replace(
        fabric, switches=[msgspec.structs.replace(switch, grpc=address) for switch in fabric.switches])
    (observer,) = Standby(fabric, beats=Beats).observers
    server = ScriptedServer()
    server.primary = 2**64 - 1

    def serve(authority: Authority) -> Coroutine[object, object, grpc.aio.Server]:
        certificate, key = authority.issue("switch")
        return server.serve(address, Certificates("", None, str(certificate), str(key)).server())

    running = await serve(before)
    task = asyncio.create_task(observer.run())
    await until(lambda: observer.primary == 2**64 - 1)
    monkeypatch.setattr(observing, "WAIT", 0.1)
    await running.stop(None)
    running = await serve(after)
    await until(lambda: "cannot be watched" in caplog.text)
    assert observer.primary is None
    monkeypatch.setattr(observing, "WAIT", BOUND)
    ca.write_bytes(after.certificate.read_bytes())
    await until(lambda: observer.primary == 2**64 - 1)
    assert [record.args[0] for record in caplog.records if "cannot be watched" in record.message] == ["leaf1"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await running.stop(None)


def test_the_seconds_of_netfold_up_are_those_for_the_switches_of_a_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--timeout` is what its help says, with `--standby`, too."""
    given: list[float] = []

    async def gone(_: Standby) -> set[str]:
        return {"leaf1"}

    def controller(*_: object, start_timeout: float, **others: object) -> object:
        given.append(start_timeout)
        raise FabricError("seen enough")

    monkeypatch.setattr(Standby, "wait", gone)
    monkeypatch.setattr(module, "Controller", controller)
    monkeypatch.setattr(module.pipeline, "of_fabric", lambda fabric: None)
    file = tmp_path / "lab.toml"
    fabric_file.save(standby(tmp_path)[0].fabric, file)
    outcome = CliRunner().invoke(app, ["up", str(file), "--standby", "--timeout", "7"])
    assert (outcome.exit_code, given) == (1, [7.0]), outcome.output
