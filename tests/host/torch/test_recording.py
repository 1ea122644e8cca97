# SPDX-License-Identifier: Apache-2.0
"""A training recorded for `netfold what-if`: what is noted of each call, whoever makes it, and that nothing stays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import netfold.torch  # noqa: E402
from netfold.host.torch.process_group import NetfoldGroup  # noqa: E402
from netfold.host.torch.recording import TrainingTrace  # noqa: E402
from netfold.host.torch.work import TorchWork  # noqa: E402
from netfold.sim.whatif.program import program_of  # noqa: E402
from netfold.wire.training_trace import MAX_EVENTS, RankTrace, TracedCall, TracedGroup, TracedStep, TracedWait  # noqa: E402

WIDTH = 64
BUCKET = 4 * WIDTH * WIDTH


@pytest.fixture(params=["gloo", "netfold"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A default process group of one rank, by either backend."""
    monkeypatch.setenv("NETFOLD_CONTROLLER", "store")
    monkeypatch.setenv("NETFOLD_ADDRESS", "127.0.0.1")
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


def recorded(path: Path) -> RankTrace:
    """The content of rank 0's file."""
    return msgspec.json.decode(path.with_suffix(".rank0.json").read_bytes(), type=RankTrace)


def calls(trace: RankTrace) -> list[tuple[str, int, str, bool]]:
    """Kind, bytes, dtype of each call, and whether it was asynchronous."""
    return [(event.kind, event.nbytes, event.dtype, event.asynchronous) for event in trace.events
            if isinstance(event, TracedCall)]


def test_only_whole_steps_between_the_skipped_ones_and_the_last_are_kept() -> None:
    """Times begin with the first step that counts; what comes before, after, or in a step that did not end is none."""
    clock = itertools.count(100.0, 1.0)
    trace, group = TrainingTrace(skip=1, steps=2, clock=lambda: next(clock)), TracedGroup("0", (0, 1))

    def step() -> None:
        number = trace.called("all_reduce", group, 8, "float32", trace.clock(), asynchronous=True)
        trace.waited(number, trace.clock())
        trace.step()

    with pytest.raises(ValueError, match="no whole step"):
        trace.content(0, 2, "gloo")
    for _ in range(5):
        assert not trace.full or _ >= 3
        step()
    content = trace.content(1, 2, "gloo")
    assert [type(event) for event in content.events] == [
        TracedStep, *[TracedCall, TracedWait, TracedStep] * 2]
    assert content.events[0].begin == 1.0  # the clock moved on while the origin was taken
    assert [event.end - event.begin for event in content.events] == [0, 1, 1, 0, 1, 1, 0]
    assert (content.rank, content.world, content.groups) == (1, 2, [group])


def test_a_file_is_bounded_and_ends_with_a_whole_step() -> None:
    """A program of endless calls ends the recording; numbers below 1 are refused."""
    trace, group = TrainingTrace(skip=0, steps=9, clock=lambda: 0.0), TracedGroup("0", (0,))
    trace.step()
    trace.step()
    for _ in range(MAX_EVENTS):
        trace.called("barrier", group, 0, "", 0.0, asynchronous=False)
    assert trace.full
    assert len(trace.content(0, 1, "gloo").events) == 2
    for skip, steps in ((-1, 1), (0, 0)):
        with pytest.raises(ValueError, match=f"skip={skip}, steps={steps}"):
            TrainingTrace(skip=skip, steps=steps)


def test_the_buckets_of_ddp_are_waited_for_when_backward_ends(backend: str, tmp_path: Path) -> None:
    """C++ calls and waits for them: the recorder sees both, in order, and two whole steps."""
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    parallel = DistributedDataParallel(model, bucket_cap_mb=BUCKET / 2**20)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
    netfold.torch.record(tmp_path / "trace.json", skip=2, steps=2)  # torch makes its buckets anew after one step
    for _ in range(5):
        optimizer.zero_grad()
        parallel(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
    trace = recorded(tmp_path / "trace")
    assert trace.backend == backend
    assert calls(trace) == [("all_reduce", BUCKET, "float32", True)] * 6
    one_step = [TracedCall] * 3 + [TracedWait] * 3 + [TracedStep]
    assert [type(event) for event in trace.events] == [TracedStep, *one_step, *one_step]
    begins = [event.begin for event in trace.events]
    assert begins == sorted(begins)
    assert program_of([trace]).steps == 2


def test_every_kind_of_call_is_noted_with_its_bytes(backend: str, tmp_path: Path) -> None:
    """Those that Python makes: what is asked for, of how many bytes, and that it is waited for at once or later."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    ones, whole = torch.ones(6), torch.empty(6, dtype=torch.bfloat16)
    with netfold.torch.record(tmp_path / "trace.json", skip=0, steps=2):
        dist.all_reduce(ones)  # before the first step: it is not noted
        optimizer.step()
        dist.all_reduce(ones)
        work = dist.all_reduce(ones.double(), async_op=True)
        dist.all_gather_into_tensor(whole, whole.clone())
        dist.all_gather([torch.empty(6)], ones)
        dist.reduce_scatter_tensor(torch.empty(6), ones)
        dist.broadcast(ones, 0)
        dist.reduce(ones, 0)
        dist.gather(ones, [torch.empty(6)])
        dist.scatter(torch.empty(6), [ones])
        dist.all_to_all_single(torch.empty(6), ones)
        dist.barrier()
        work.wait()
        optimizer.step()
        dist.all_reduce(ones)  # in a step that does not end
    trace = recorded(tmp_path / "trace")
    assert calls(trace) == [
        ("all_reduce", 24, "float32", False), ("all_reduce", 48, "float64", True),
        ("all_gather", 12, "bfloat16", False), ("all_gather", 24, "float32", False),
        ("reduce_scatter", 24, "float32", False), ("broadcast", 24, "float32", False),
        ("reduce", 24, "float32", False), ("gather", 24, "float32", False), ("scatter", 24, "float32", False),
        ("all_to_all", 24, "float32", False), ("barrier", 0, "", False)]
    order = [(type(event), event.number) for event in trace.events if not isinstance(event, TracedStep)]
    waits = [number for kind, number in order if kind is TracedWait]
    assert waits == [1, *range(3, 12), 2]
    assert order.index((TracedWait, 1)) == 1
    assert program_of([trace]).steps == 1


def test_times_are_those_of_the_accelerator(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where calls have tensors on one, every time is taken once the calling thread's stream there is done: before the
    call, before and after the wait, and at the end of the step."""
    device, waits = torch.device("cuda", 1), list[torch.device]()

    class Stream:
        def synchronize(self) -> None:
            waits.append(device)

    class Module:
        def current_stream(self, of: torch.device) -> Stream:
            assert of == device
            return Stream()

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    with netfold.torch.record(tmp_path / "trace.json", skip=0, steps=1) as recording:
        optimizer.step()
        recording._devices.add(device)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "get_device_module", lambda of: Module())
            dist.all_reduce(torch.ones(3))
            assert len(waits) == 3
            optimizer.step()
            assert len(waits) == 4
    assert calls(recorded(tmp_path / "trace")) == [("all_reduce", 12, "float32", False)]


def test_torch_is_as_it_was_afterwards(backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Methods are put back, a second recording at the same time is refused, and a later one works; without a whole step
    a warning says why there is no file."""
    before = dist.Work.wait, TorchWork.wait, {name: getattr(NetfoldGroup, name) for name in ("allreduce", "barrier")}
    with netfold.torch.record(tmp_path / "trace.json") as recording:
        assert dist.Work.wait is not before[0]
        with pytest.raises(ValueError, match=r"recorded already, for .*trace\.json"):
            netfold.torch.record(tmp_path / "other.json")
        dist.all_reduce(torch.ones(1))
    assert before == (dist.Work.wait, TorchWork.wait,
                      {name: getattr(NetfoldGroup, name) for name in ("allreduce", "barrier")})
    assert "trace.json is not written: rank 0: no whole step was recorded" in caplog.text
    assert not list(tmp_path.iterdir())
    assert recording.stop() is None
    with netfold.torch.record(tmp_path / "other.json", skip=0, steps=1):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
        for _ in range(3):
            dist.all_reduce(torch.ones(3))
            optimizer.step()
    assert calls(recorded(tmp_path / "other")) == [("all_reduce", 12, "float32", False)]
