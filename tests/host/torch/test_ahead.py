# SPDX-License-Identifier: Apache-2.0
"""With wait="device" a program goes on before a collective is done, and nothing that has failed looks like a sum."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.errors import CollectiveTimeout, NetFoldError, RanksChanged, TransportError
from netfold.testing import loopback_job, on_every_rank
from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

import torch.distributed as dist  # noqa: E402

from netfold.host.staging import device as devices  # noqa: E402
from netfold.host.staging.copies import Staging  # noqa: E402
from netfold.host.torch.ahead import RunAhead  # noqa: E402
from netfold.host.torch.process_group import NetfoldGroup  # noqa: E402
from netfold.torch import Options, join  # noqa: E402
from support.devices import late_device  # noqa: E402
from support.devices.late_device import LateDevice, LateEvent  # noqa: E402
from support.hosts.insides import reducer_of  # noqa: E402

SECONDS = 30.0
"""More than anything here takes."""
Rank = Callable[[NetfoldGroup, LateDevice], Any]


def on_two(rank: Rank, *, timeout: float = SECONDS, closed: bool = True, **how: Any) -> list[Any]:
    """What two ranks return whose groups run ahead; each works on a stream of a device of its own.

    closed  their groups are shut down here
    how     of their communicators
    """
    store, made = dist.HashStore(), threading.Barrier(2)

    def run(comm: Communicator) -> Any:
        group = NetfoldGroup(store, comm, timedelta(seconds=SECONDS), ahead=True)
        made.wait(SECONDS)  # one that ends at once would close gloo's connections before the other one has them all
        device = LateDevice(queued=True)
        reducer_of(group).staging = Staging(device.of)
        with device.on(device.stream()):
            found = rank(group, device)
        if closed:
            group.shutdown()
        return found

    with loopback_job(2, timeout=timeout, **how) as comms:
        found = on_every_rank(comms, run)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def read(device: LateDevice, tensor: torch.Tensor) -> list[float]:
    """What the work of the calling thread's stream that comes next finds in a tensor."""
    seen: list[list[float]] = []
    device.enqueue(device.current(), lambda: seen.append(tensor.tolist()))
    device.run(device.current())
    return seen[0]


def test_the_program_goes_on_before_the_others_have_called() -> None:
    """Rank 0 waits for works, and for futures, that rank 1 begins only then: what its stream does next finds the sums,
    and no work is completed before the device is done."""
    gone = threading.Event()

    def rank(group: NetfoldGroup, device: LateDevice) -> list[list[float]]:
        if group.rank():
            assert gone.wait(SECONDS)
        tensors = [torch.full((3,), float(place + group.rank())) for place in range(3)]
        works = [group.allreduce([tensor]) for tensor in tensors]
        for work in works:
            work.wait()
        works[1].get_future().wait()
        doubled = works[2].get_future().then(lambda future: [2 * tensor for tensor in future.value()])
        if not group.rank():
            assert not any(work.is_completed() for work in works)
            gone.set()
        found = [read(device, tensor) for tensor in tensors]
        assert all(work.get_future_result().wait() == 0 for work in works)
        assert all(work.is_completed() and work.is_success() for work in works)
        assert len(doubled.wait()) == 1
        return found

    assert on_two(rank) == [[[2.0 * place + 1] * 3 for place in range(3)]] * 2


def test_a_work_that_nobody_keeps_is_done_all_the_same() -> None:
    """What comes after it on the group's device finds its sum."""

    def rank(group: NetfoldGroup, device: LateDevice) -> list[float]:
        dropped, waited = torch.ones(4), torch.ones(5)
        group.allreduce([dropped])
        group.allreduce([waited]).wait()
        device.run(device.current())
        return dropped.tolist()

    assert on_two(rank) == [[2.0] * 4] * 2


def test_the_callers_thread_frees_the_memory_of_a_device() -> None:
    """To free it takes the driver's locks, for which the thread that raises words must not wait: so tensors that the
    program has dropped live until a later call."""
    gone, freed = threading.Event(), []

    def rank(group: NetfoldGroup, device: LateDevice) -> None:
        if group.rank():
            assert gone.wait(SECONDS)
        for how in (group.allreduce, group.broadcast) * 2:
            memory = np.ones(3, np.float32)
            weakref.finalize(memory, lambda: freed.append(threading.current_thread().name))
            how([torch.from_numpy(memory)]).wait()
            del memory
        gone.set()
        for _ in range(3):
            group.allreduce([torch.ones(1)]).wait()
            device.run(device.current())
            group.communicator.later(lambda: None, "all that it was given").wait(SECONDS)

    on_two(rank)
    assert len(freed) == 8
    assert "netfold" not in freed


def test_memory_is_freed_once_the_operation_after_its_own_is_done() -> None:
    """Until then the communicator's thread may still be in callbacks of the first, which use it."""
    ahead, done = RunAhead(Mock(), on=True), [False] * 3
    operations = [Mock(carried=lambda place=place: done[place]) for place in range(3)]
    freed = [operation.staged.let_go for operation in operations]
    ahead.begun("allreduce", operations[0])
    done[0] = True
    ahead.begun("allreduce", operations[1])
    assert [one.called for one in freed] == [False] * 3
    done[1] = True
    ahead.begun("allreduce", operations[2])
    assert [one.called for one in freed] == [True, False, False]


def test_a_wait_with_a_time_out_blocks_the_host() -> None:
    """``wait(timeout)`` and a call's own time-out raise when they are over; without them the same work is waited for by
    the device."""
    over = threading.Event()

    def rank(group: NetfoldGroup, device: LateDevice) -> list[float]:
        tensor, options = torch.ones(2), dist.AllreduceOptions()
        if group.rank():
            assert over.wait(SECONDS)
        else:
            options.timeout = timedelta(seconds=0.05)
        limited = group.allreduce([tensor], options)
        work = group.allreduce([tensor])
        if not group.rank():
            with pytest.raises(CollectiveTimeout):
                limited.wait()
            with pytest.raises(CollectiveTimeout):
                work.wait(timedelta(seconds=0.05))
            assert not reducer_of(group).ahead.heard, "they go on, and may fail yet"
            over.set()
        work.wait()
        return read(device, tensor)

    assert on_two(rank) == [[4.0] * 2] * 2


@pytest.mark.parametrize("heard", ["by the next call", "by a wait", "at the end", "by nobody, who gives up"])
def test_an_operation_that_fails_leaves_nan_and_its_error(heard: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rank 1 leaves after rank 0 went on: its stream goes on with NaN instead of sums, the log has the error at once,
    and the program hears it by its next call, whatever that is, or when it destroys the group at the latest."""
    gone, why = threading.Event(), "it has had enough"

    def rank(group: NetfoldGroup, device: LateDevice) -> None:
        met = torch.ones(2)
        group.allreduce([met]).wait()
        assert read(device, met) == [2.0] * 2
        if group.rank():
            assert gone.wait(SECONDS)
            group.communicator.close(why)
            return
        tensors, later = [torch.ones(3), torch.ones(4)], torch.ones(5)
        whole = [torch.ones(2), torch.ones(2)]
        raised, known = device.flags.raise_to, []

        def raise_to(word: Any, value: int) -> None:
            known.append(reducer_of(group).ahead.error)
            raised(word, value)

        device.flags.raise_to = raise_to  # type: ignore[method-assign]
        calls: list[Callable[[], Any]] = [
            lambda: group.allreduce([tensors[0]]), lambda: group.allgather([whole], [torch.zeros(2)]),
            lambda: group.allreduce([tensors[1]]),
        ]
        works = [call() for call in (calls[1:] if heard == "at the end" else calls)]
        for work in works:
            work.wait()
        last, ended = reducer_of(group).last, threading.Event()
        assert last is not None
        last.when_done(ended.set)
        gone.set()
        for tensor in (*tensors[heard == "at the end":], *whole):
            assert all(value != value for value in read(device, tensor))
        assert ended.wait(SECONDS)
        assert len(known) == len(works)
        assert all(isinstance(error, NetFoldError) for error in known), "whoever sees NaN can hear why"
        if heard == "by the next call":
            for call in (lambda: group.allreduce([later]), group.barrier, lambda: group.send([later], 1)):
                with pytest.raises(NetFoldError, match=why):
                    call()
            assert later.tolist() == [1.0] * 5
        elif heard == "by a wait":
            with pytest.raises(NetFoldError, match=why):
                works[0].wait()
            assert not works[0].is_success()
        elif heard == "at the end":
            with pytest.raises(NetFoldError, match=why):
                group.shutdown()
        else:
            group.abort()
        group.shutdown()

    with caplog.at_level(logging.ERROR, "netfold"):
        on_two(rank, closed=False, rail="tcp")
    said = [record.message for record in caplog.records if "failed after its caller went on" in record.message]
    assert len(said) == 1
    assert "hold NaN" in said[0]
    assert why in said[0]


def test_a_rank_that_never_calls_holds_up_no_stream() -> None:
    """When the time-out is over, the stream goes on with NaN, and the next call raises it."""
    over = threading.Event()

    def rank(group: NetfoldGroup, device: LateDevice) -> None:
        if group.rank():
            assert over.wait(SECONDS)
            return
        tensor = torch.ones(3)
        group.allreduce([tensor]).wait()
        assert all(value != value for value in read(device, tensor))
        with pytest.raises(CollectiveTimeout):
            group.barrier()
        group.shutdown()
        over.set()

    on_two(rank, timeout=1.0, closed=False)


@pytest.mark.parametrize("heard", ["by a wait", "by a future", "by the next call", "at the end"])
def test_no_nan_comes_after_what_the_program_does_next(heard: str) -> None:
    """Whoever has the error may fill the tensors anew: the stream goes on behind the NaN of all that has failed."""

    def rank(group: NetfoldGroup, queued: LateDevice) -> list[float]:
        if group.rank():
            group.abort()
            return []
        device, tensor = LateDevice(), torch.ones(3)
        reducer_of(group).staging = Staging(device.of)
        with device.on(device.stream()):
            work: Any = group.allreduce([tensor])
            ended = threading.Event()
            work.pending.when_done(ended.set)
            assert ended.wait(SECONDS)
            calls: dict[str, Callable[[], Any]] = {
                "by a wait": work.wait, "by a future": lambda: work.get_future().wait(), "by the next call":
                group.barrier, "at the end": group.shutdown,
            }
            with pytest.raises(RuntimeError):
                calls[heard]()
            device.enqueue(device.current(), lambda: tensor.fill_(7))
            device.run(device.current())
        for stream in device.streams:
            device.run(stream)
        group.abort()
        return tensor.tolist()

    assert on_two(rank, timeout=0.3, closed=False)[0] == [7.0] * 3


def test_a_failed_operation_is_over_whatever_its_device_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work says so, and has its error, although the device answers nothing any more."""

    def query(event: LateEvent) -> bool:
        raise RuntimeError("the device is gone")

    def rank(group: NetfoldGroup, device: LateDevice) -> list[Any]:
        if group.rank():
            group.abort()
            return []
        work = group.allreduce([torch.ones(3)])
        reducer_of(group).close()
        monkeypatch.setattr(LateEvent, "query", query)
        found = [work.is_completed(), work.is_success(), isinstance(work.exception(), NetFoldError)]
        group.abort()
        return found

    assert on_two(rank, timeout=0.3, closed=False)[0] == [True, False, True]


def test_a_device_has_the_communicators_time_out_to_copy_out() -> None:
    """Not torch's, which is longer here: ``Options(timeout=)`` and the environment count."""

    both = threading.Barrier(2)

    def rank(group: NetfoldGroup, device: LateDevice) -> str:
        device.failure = RuntimeError("it never copies out")
        group.allreduce([torch.ones(3)]).get_future_result().wait()
        problem = group.communicator.problem
        both.wait(SECONDS)  # an abort ends the other one, too
        group.abort()
        return str(problem)

    assert all("has not copied out within 0.3 s" in said for said in on_two(rank, timeout=0.3, closed=False))


def test_floats_without_nan_are_left_to_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing could say that there is no sum."""
    tensor, staged = torch.zeros(1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), Mock()
    with caplog.at_level(logging.INFO, "netfold"):
        RunAhead(Mock(), on=True).prepare("allreduce", staged, [tensor])
    assert "wait() blocks the host, since float4_e2m1fn_x2 has no value that" in caplog.text
    staged.chain_up.assert_not_called()


def test_a_call_with_wrong_arguments_spoils_nothing() -> None:
    """Tensors of a call that is refused keep their values, its memory is given back, and the group goes on."""

    def rank(group: NetfoldGroup, device: LateDevice) -> tuple[list[float], list[float]]:
        whole, mine = torch.ones(5), torch.ones(2)
        with pytest.raises(ValueError, match="expected"):
            group._allgather_base(whole, mine)
        group.allreduce([mine]).wait()
        found = read(device, whole), read(device, mine)
        reducer_of(group).close()  # once the host is through as well
        for stream in device.streams:
            device.run(stream)
        assert not device.pool.full
        assert device.pool.taken == 0
        return found

    assert on_two(rank) == [([1.0] * 5, [2.0] * 2)] * 2


def test_a_device_that_takes_no_copies_ends_the_communicator() -> None:
    """The call raises what the device does, and so does the next one; what it has not taken is not filled."""

    def rank(group: NetfoldGroup, device: LateDevice) -> None:
        tensor = torch.ones(3)

        def wait(stream: Any, word: Any, value: int) -> None:
            raise RuntimeError("the device is gone")

        device.flags.wait = wait  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="the device is gone"):
            group.allreduce([tensor])
        with pytest.raises(NetFoldError, match="does not take its copies back: the device is gone"):
            group.allreduce([tensor]).wait()
        group.abort()

    on_two(rank, closed=False)


@pytest.mark.parametrize("kind", ["allreduce", "broadcast"])
def test_a_call_that_is_interrupted_holds_up_no_other(kind: str) -> None:
    """Ctrl-C after an operation has begun, and before the device has its copies: the next one does not wait for it."""

    def rank(group: NetfoldGroup, device: LateDevice) -> list[float]:
        ahead, tensor = reducer_of(group).ahead, torch.ones(3)
        begun = ahead.begun

        def interrupted(what: str, pending: Any) -> None:
            ahead.begun = begun  # type: ignore[method-assign]
            raise KeyboardInterrupt

        ahead.begun = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            group.allreduce([torch.ones(3)]) if kind == "allreduce" else group.broadcast([torch.ones(3)], root=0)
        group.allreduce([tensor]).wait()
        return read(device, tensor)

    assert on_two(rank) == [[2.0] * 3] * 2


def test_an_idle_communicator_asks_no_driver_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread may be there for a call's tensors before the call has returned: it waits for a word all the same."""
    asked: list[str] = []
    synchronize = LateEvent.synchronize

    def noted(event: LateEvent) -> None:
        asked.append(threading.current_thread().name)
        synchronize(event)

    def rank(group: NetfoldGroup, device: LateDevice) -> list[float]:
        tensor, ahead, comm = torch.full((2,), float(group.rank())), reducer_of(group).ahead, group.communicator
        prepare = ahead.prepare

        def prepare_late(what: str, copies: Any, fills: Any) -> None:
            comm.later(lambda: None, "all that it was given").wait(SECONDS)
            prepare(what, copies, fills)

        ahead.prepare = prepare_late  # type: ignore[method-assign]
        group.broadcast([tensor], root=1).wait()
        return read(device, tensor)

    monkeypatch.setattr(LateEvent, "synchronize", noted)
    assert on_two(rank) == [[1.0] * 2] * 2
    assert "netfold" not in asked


def test_an_error_that_the_program_has_is_not_told_again() -> None:
    """A work's wait may raise it before the group knows of it; a time-out of a wait says nothing of its work."""

    def rank(group: NetfoldGroup, device: LateDevice) -> None:
        ahead = reducer_of(group).ahead
        ahead.hear()
        ahead.failed("broadcast", TransportError("it has had enough"))
        ahead.tell()

    on_two(rank, closed=False)


def test_an_operation_that_fails_before_the_device_has_its_copies_holds_up_nobody() -> None:
    """The ranks may change between the call of an operation and its copies: the caller goes on, with NaN."""

    def rank(group: NetfoldGroup, device: LateDevice) -> None:
        tensor, ahead, ready = torch.ones(3), reducer_of(group).ahead, threading.Event()
        begun = ahead.begun

        def begun_late(what: str, pending: Any) -> None:
            ended = threading.Event()
            pending.when_done(ended.set)
            ready.set()
            assert ended.wait(SECONDS)
            begun(what, pending)

        def change() -> None:
            assert ready.wait(SECONDS)
            raise RanksChanged("a rank is gone", None)

        ahead.begun = begun_late  # type: ignore[method-assign]
        group.communicator.later(change, "what is before it")
        work = group.allreduce([tensor])
        assert all(value != value for value in read(device, tensor))
        with pytest.raises(RanksChanged, match="a rank is gone"):
            work.wait()
        group.abort()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late_device, "PATIENCE", 15.0)
        on_two(rank, closed=False)


def test_the_log_names_what_the_host_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    """Integers, lanes that the device makes, and a gather on a rank that gets nothing: once each, with the reason, and
    with right results."""

    def rank(group: NetfoldGroup, device: LateDevice) -> list[Any]:
        whole, lanes = torch.ones(3, dtype=torch.int32), torch.ones(512)
        for _ in range(2):
            group.allreduce([whole]).wait()
        reducer_of(group).allreduce(lanes, "sum", lane_bits=8).wait()
        into = [[torch.zeros(2), torch.zeros(2)]] if group.rank() else []
        group.gather(into, [torch.ones(2)], root=1).wait()
        return [read(device, tensor) for tensor in (whole, lanes[:2], *(into[0] if into else []))]

    with caplog.at_level(logging.INFO, "netfold"):
        found = on_two(rank)
    assert found == [[[4] * 3, [2.0] * 2], [[4] * 3, [2.0] * 2, [1.0] * 2, [1.0] * 2]]
    said = sorted(record.message.partition("fold: ")[2] or record.message for record in caplog.records
                  if "wait() blocks the host" in record.message)
    assert len(said) == 5, said
    for part, times in (("allreduce: wait() blocks the host, since int32 has no value that says", 2),
                        ("allreduce: wait() blocks the host, since the device makes its lanes", 2),
                        ("gather: wait() blocks the host, since it fills nothing here", 1)):
        assert sum(part in line for line in said) == times, said


def test_what_cannot_run_ahead_is_refused_when_the_group_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an accelerator, and with one of which no such waits are known; an unknown name; a communicator of its own
    says that the option is not for it."""
    options = Options(wait="device", controller="store", address="127.0.0.1")

    def made() -> None:
        dist.init_process_group("netfold", store=dist.HashStore(), rank=0, world_size=1, pg_options=options)

    with pytest.raises(ValueError, match='wait="device": torch has no accelerator here: expected a device whose'):
        made()
    monkeypatch.setattr(devices, "kind", lambda: "meta")
    monkeypatch.setattr(devices, "_accelerator", lambda place: devices.Cpu())
    with pytest.raises(ValueError, match='wait="device": meta: the CPU\'s work is done at once'):
        made()
    assert not dist.is_initialized()
    monkeypatch.undo()
    assert not Options().runs_ahead()
    monkeypatch.setenv("NETFOLD_WAIT", "device")
    assert Options().runs_ahead()
    assert not Options(wait="host").runs_ahead()
    monkeypatch.setenv("NETFOLD_WAIT", "nobody")
    with pytest.raises(ValueError, match="NETFOLD_WAIT='nobody': expected one of host, device"):
        Options().runs_ahead()
    with caplog.at_level(logging.WARNING, "netfold"):
        join(options, rank=0, world=1, store=dist.HashStore()).close()
    assert 'Options(wait="device") changes nothing in a communicator of its own' in caplog.text
