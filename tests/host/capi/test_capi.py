# SPDX-License-Identifier: Apache-2.0
"""The C interface: each call against its Python counterpart, its refusals, and programs in C that run CPython by it."""

from __future__ import annotations

import ctypes as C
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbuild import cc
from netfold.host import errors
from netfold.host.api.communicator import Communicator
from netfold.host.capi import calls, library
from netfold.host.operation.reduction import NAMES
from netfold.testing import loopback_job, on_every_rank
from support.hosts.c_programs import compiled

pytestmark = pytest.mark.needs("libpython")
RANKS = 3
P, SIZE, INT = C.c_void_p, C.c_size_t, C.c_int
SUM, AVERAGE = calls.OPS.index("sum"), calls.OPS.index("average")


@pytest.fixture(scope="module")
def lib() -> C.CDLL:
    """The library in this process, which is one of Python already."""
    lib = C.CDLL(str(library.build()))
    lib.netfold_error.restype = lib.netfold_status_name.restype = C.c_char_p
    out = C.POINTER(P)
    for name, arguments in {
        "join": (P, out), "group": (P, P, INT, out), "rank": (P,), "size": (P,), "explain": (P, SIZE, P, SIZE),
        "allreduce": (P, P, P, SIZE, INT, INT, out), "reduce_scatter": (P, P, P, SIZE, INT, INT, out),
        "all_gather": (P, P, P, SIZE, INT, out), "broadcast": (P, P, SIZE, INT, INT, out), "barrier": (P, out),
        "test": (P, C.POINTER(INT)), "wait": (P,), "abort": (P, C.c_char_p), "leave": (P,),
    }.items():
        getattr(lib, f"netfold_{name}").argtypes = arguments
    return lib


@contextmanager
def ranks(work: Callable[[P, Communicator], Any]) -> Iterator[list[Any]]:
    """Results of work on every rank of a job that folds; work gets each communicator as C has it."""
    with loopback_job(RANKS, rail="innet") as comms:
        yield on_every_rank(comms, lambda comm: work(P(id(comm)), comm))


def everywhere(work: Callable[[P, Communicator], Any]) -> list[Any]:
    """Results of work on every rank.  Raises the first one's error."""
    with ranks(work) as results:
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def of(array: Any) -> P:
    """Where an array's elements are."""
    return P(array.ctypes.data)


@pytest.mark.parametrize("dtype", NAMES)
def test_collectives_of_each_dtype_give_what_python_gives(lib: C.CDLL, dtype: str) -> None:
    """allreduce, reduce_scatter, all_gather and broadcast, at once and by requests, in place and not."""
    number, kind = calls.DTYPES.index(dtype), np.dtype("uint16" if dtype == "bfloat16" else dtype)
    one = np.array([0x3F80 if dtype == "bfloat16" else 1], kind)[0]
    three = np.array([0x4040 if dtype == "bfloat16" else RANKS], kind)[0]

    def work(comm: P, python: Communicator) -> None:
        rank = python.rank
        assert (lib.netfold_rank(comm), lib.netfold_size(comm)) == (rank, RANKS)
        ones, out = np.full(6, one, kind), np.zeros(6, kind)
        assert lib.netfold_allreduce(comm, of(ones), of(out), 6, number, SUM, None) == calls.OK, lib.netfold_error()
        assert (out == three).all()
        assert (ones == one).all()
        assert lib.netfold_allreduce(comm, of(ones), of(ones), 6, number, SUM, None) == calls.OK
        assert (ones == three).all()
        part, requests = np.zeros(2, kind), [P(), P(), P()]
        whole, rows = np.full(6, one, kind), np.arange(6, dtype=kind)
        assert not lib.netfold_reduce_scatter(comm, of(whole), of(part), 2, number, SUM, C.byref(requests[0]))
        assert not lib.netfold_all_gather(comm, of(rows[2 * rank :]), of(rows), 2, number, C.byref(requests[1]))
        assert not lib.netfold_barrier(comm, C.byref(requests[2]))
        assert [lib.netfold_wait(request) for request in requests] == [calls.OK] * 3
        assert (part == three).all()
        assert (rows == np.arange(6)).all()
        assert not lib.netfold_reduce_scatter(comm, of(whole), of(whole[2 * rank :]), 2, number, SUM, None)
        assert (whole[2 * rank : 2 * rank + 2] == three).all()
        data = np.full(5, rank, kind)
        assert not lib.netfold_broadcast(comm, of(data), 5, number, 2, None)
        assert (data == np.full(5, 2, kind)).all()
        assert not lib.netfold_allreduce(comm, None, None, 0, number, SUM, None)

    everywhere(work)


@pytest.mark.parametrize("dtype", sorted({*calls.DTYPES} - {*NAMES}))
def test_integers_that_nothing_reduces_are_moved_and_refused_by_name(lib: C.CDLL, dtype: str) -> None:
    """They are gathered; an allreduce of them names the dtypes that there are."""
    number = calls.DTYPES.index(dtype)

    def work(comm: P, python: Communicator) -> None:
        mine, rows = np.full(2, python.rank, dtype), np.zeros(2 * RANKS, dtype)
        assert lib.netfold_allreduce(comm, of(mine), of(mine), 2, number, SUM, None) == calls.INVALID
        assert b"expected one of float32" in lib.netfold_error()
        assert lib.netfold_all_gather(comm, of(mine), of(rows), 2, number, None) == calls.OK
        assert rows.tolist() == [0, 0, 1, 1, 2, 2]

    everywhere(work)


def test_a_group_folds_its_own_ranks_and_is_left(lib: C.CDLL) -> None:
    """A group of two of three ranks has numbers and sums of its own, and only the joined communicator is aborted."""

    def work(comm: P, python: Communicator) -> None:
        members = np.array([2, 0] if python.rank != 1 else [1], np.int32)
        group = P()
        assert not lib.netfold_group(comm, of(members), len(members), C.byref(group)), lib.netfold_error()
        assert lib.netfold_size(group) == len(members)
        assert members[lib.netfold_rank(group)] == python.rank
        data = np.full(10, python.rank, np.float32)
        assert not lib.netfold_allreduce(group, of(data), of(data), 10, calls.DTYPES.index("float32"), AVERAGE, None)
        assert (data == 1).all()
        assert lib.netfold_abort(group, b"enough") == calls.INVALID
        assert lib.netfold_leave(group) == calls.OK

    everywhere(work)


def test_requests_are_done_before_they_are_waited_for_and_abort_ends_them(lib: C.CDLL) -> None:
    """netfold_test only looks; a request whose job is aborted ends with the words that the program gave, of which some
    need not be UTF-8."""
    over = threading.Event()

    def work(comm: P, python: Communicator) -> None:
        request, done, data = P(), INT(), np.ones(4, np.int64)
        assert not lib.netfold_barrier(comm, C.byref(request))
        while not done.value:
            assert lib.netfold_test(request, C.byref(done)) == calls.OK
        assert lib.netfold_wait(request) == calls.OK
        if python.rank != 1:
            assert over.wait(60)
            return
        try:
            assert not lib.netfold_allreduce(comm, of(data), of(data), 4, calls.DTYPES.index("int64"), SUM,
                                             C.byref(request))  # which the others never call
            assert lib.netfold_abort(comm, b"seen enough: \xff") == calls.OK
            assert lib.netfold_wait(request) == calls.CLOSED
            assert "seen enough: \N{REPLACEMENT CHARACTER}" in lib.netfold_error().decode()
            assert lib.netfold_barrier(comm, None) == calls.CLOSED
        finally:
            over.set()

    everywhere(work)


def test_the_callers_mistakes_are_told_apart_from_other_failures(lib: C.CDLL) -> None:
    """Each refusal has its status and a text that names what was expected; nothing is sent for it."""
    data = np.ones(100, np.float32)
    float32 = calls.DTYPES.index("float32")

    def work(comm: P, python: Communicator) -> None:
        def refused(status: int, *words: str) -> None:
            assert (status, lib.netfold_status_name(status)) == (calls.INVALID, b"NETFOLD_INVALID")
            for word in words:
                assert word in lib.netfold_error().decode()

        mine, out = data.copy(), np.zeros(100, np.float32)
        refused(lib.netfold_allreduce(None, of(mine), of(out), 1, float32, SUM, None), "netfold_allreduce", "NULL")
        refused(lib.netfold_allreduce(comm, None, of(out), 1, float32, SUM, None), "send is NULL", "4 bytes")
        refused(lib.netfold_allreduce(comm, of(mine), None, 1, float32, SUM, None), "receive is NULL")
        refused(lib.netfold_allreduce(comm, of(mine), of(out), 1, 99, SUM, None), "dtype 99", "float32")
        refused(lib.netfold_allreduce(comm, of(mine), of(out), 1, -1, SUM, None), "dtype -1")
        refused(lib.netfold_allreduce(comm, of(mine), of(out), 1, float32, 5, None), "op 5", "average")
        refused(lib.netfold_allreduce(comm, of(mine), of(out), 2**63, float32, SUM, None), "more than memory can be")
        refused(lib.netfold_all_gather(comm, of(mine), of(out), 2**61, float32, None), "more than memory can be")
        refused(lib.netfold_allreduce(comm, of(mine), of(mine[3:]), 50, float32, SUM, None), "overlap")
        refused(lib.netfold_allreduce(comm, of(out), of(out), 4, calls.DTYPES.index("int32"), AVERAGE, None), "average")
        refused(lib.netfold_broadcast(comm, of(mine), 1, float32, 7, None), "root", "7")
        refused(lib.netfold_wait(None), "netfold_wait")
        refused(lib.netfold_group(comm, None, 2, C.byref(P())), "NULL")
        room = C.create_string_buffer(10)
        assert lib.netfold_explain(comm, 1 << 20, room, len(room)) == calls.OK
        assert len(room.value) == 9  # it is cut, with its end
        assert lib.netfold_allreduce(comm, of(mine), of(out), 100, float32, SUM, None) == calls.OK
        assert lib.netfold_error() == b""
        assert (out == RANKS).all()

    everywhere(work)


def test_unlike_calls_of_ranks_are_a_mismatch(lib: C.CDLL) -> None:
    """A rank with another number of elements gives NETFOLD_MISMATCH on all of them, and no sum."""

    def work(comm: P, python: Communicator) -> int:
        data = np.ones(8, np.int32)
        return int(lib.netfold_allreduce(comm, of(data), of(data), 8 - python.rank % 2, calls.DTYPES.index("int32"),
                                         SUM, None))

    assert everywhere(work) == [calls.MISMATCH] * RANKS


@pytest.mark.parametrize(("error", "status"), [
    (errors.JoinRefused("x"), calls.REFUSED), (errors.PlanError("x"), calls.REFUSED),
    (errors.PeerLost("x"), calls.LOST), (errors.CollectiveTimeout("x"), calls.TIMEOUT),
    (errors.Closed("x"), calls.CLOSED), (errors.TransportError(5, "x"), calls.SYSTEM), (MemoryError(), calls.SYSTEM),
    (cc.BuildError("x"), calls.SYSTEM), (errors.Busy("x"), calls.INVALID), (KeyError("x"), calls.INTERNAL),
], ids=lambda value: type(value).__name__)
def test_each_exception_has_a_status_and_a_text(error: BaseException, status: int) -> None:
    """Ours by their kind, the system's as such, and all others as faults that name the exception."""
    assert calls.failure(error)[0] == status
    assert "x" in calls.failure(error)[1] or "MemoryError" in calls.failure(error)[1]


def test_numbers_are_those_of_the_header() -> None:
    """The enumerations of netfold.h have the order of the tables here."""
    header = (library.HERE / library.HEADER).read_text()
    names = [f"NETFOLD_{name.upper()} = {number}," for number, name in enumerate(calls.DTYPES)]
    names += [f"NETFOLD_{name.upper()} = {number}," for number, name in enumerate(calls.OPS)]
    statuses = ("OK", "INVALID", "REFUSED", "MISMATCH", "LOST", "TIMEOUT", "CLOSED", "SYSTEM", "INTERNAL")
    names += [f"NETFOLD_{name} = {getattr(calls, name)}," for name in statuses]
    assert [name for name in names if name not in header] == []


PROGRAM = """
#include <netfold.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    netfold_comm *comm = (void *)1;
    netfold_options options;
    netfold_options_init(&options);
    options.rank = 0, options.world = 2, options.address = "127.0.0.1", options.controller = "unix:/nowhere/at/all";
    options.join_timeout = 0.1;
    netfold_status status = netfold_join(&options, &comm);
    printf("%s %d %s\\n", netfold_status_name(status), comm == NULL, netfold_error());
    for (int longer = 0; longer < 2; longer++) {
        options.size = longer ? sizeof options + 1 : 3;
        printf("%s\\n", netfold_status_name(netfold_join(&options, &comm)));
    }
    fflush(stdout);
    pid_t child = fork();
    if (!child) { /* CPython goes on in it */
        options.size = sizeof options, options.lane_bits = 7;
        status = netfold_join(&options, &comm);
        printf("child %s %s\\n", netfold_status_name(status), netfold_error());
        return 0;
    }
    waitpid(child, NULL, 0);
    return 0;
}
"""


def test_a_c_program_starts_cpython_and_is_told_why_it_cannot_join(lib: C.CDLL, tmp_path: Path) -> None:
    """A controller that is not there, options shorter or longer than any known, and a child of the program that forked
    it."""
    program = compiled(tmp_path, PROGRAM)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True)
    first, short, long, child = done.stdout.splitlines()
    assert first.startswith("NETFOLD_REFUSED 1 ")
    assert "unix:/nowhere/at/all" in first
    assert (short, long) == ("NETFOLD_INVALID", "NETFOLD_INVALID")
    assert child.startswith("child NETFOLD_INVALID ")
    assert "lane_bits" in child
