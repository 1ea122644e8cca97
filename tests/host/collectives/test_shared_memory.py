# SPDX-License-Identifier: Apache-2.0
"""Shared memory among ranks: who can open it, and what a rank can be made to open."""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.host.collectives import shared_memory
from netfold.host.collectives.barrier import barrier
from netfold.host.collectives.broadcast import binomial
from netfold.host.collectives.flow import Strand, run
from netfold.host.collectives.shared_memory import NONCE_BYTES, SharedRows
from netfold.host.errors import TransportError
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.operation.reduction import Reduction
from netfold.testing import MemoryFabric
from support.hosts.collectives import values

CALL = Call(1, "open")


def test_the_file_is_new_this_users_alone_and_named_by_the_jobs_secret(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask; two jobs, or two times of one job, have different names, and none of them is on the wire."""
    seen: list[tuple[str, int]] = []
    create = shared_memory.create_file

    def look(path: str, size: int) -> object:
        memory = create(path, size)
        seen.append((path, stat.S_IMODE(os.stat(path).st_mode)))
        with pytest.raises(FileExistsError):
            create(path, size)
        return memory

    monkeypatch.setattr(shared_memory, "create_file", look)
    fabrics = [MemoryFabric(2), MemoryFabric(2)]
    before = os.umask(0)
    try:
        for fabric in [*fabrics, fabrics[0]]:
            values(fabric.run(lambda mesh: opened(mesh)))
    finally:
        os.umask(before)
    assert len({path for path, _ in seen}) == 3
    for path, mode in seen:
        assert re.fullmatch(f"{shared_folder}/netfold-[0-9a-f]{{32}}", path)
        assert mode == 0o600
    assert fabrics[1].bytes[0, 1] <= NONCE_BYTES + 2, "more than a nonce and barriers went to the other rank"
    assert not list(shared_folder.iterdir())


def opened(mesh: Mesh) -> None:
    """Makes shared rows and lets go of them."""
    with mesh.operation(CALL):
        SharedRows(mesh, row=64).close()


@given(st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_whatever_the_first_rank_says_names_a_file_of_the_job(said: bytes) -> None:
    """A rank that is told paths, dots or zero bytes in place of a nonce opens, if anything, a name of its own making,
    that nobody can choose."""
    names = []

    def work(mesh: Mesh) -> None:
        with mesh.operation(CALL):
            if mesh.rank:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(shared_memory, "open_file", lambda path, size: names.append(path) or _missing(path))
                    SharedRows(mesh, row=64)
            else:
                run(mesh, binomial(mesh, np.frombuffer(said, np.uint8).copy()))
                run(mesh, barrier(mesh))

    assert isinstance(MemoryFabric(2).run(work)[1], TransportError)
    assert len(names) == any(said)
    for name in names:
        assert re.fullmatch(r"/dev/shm/netfold-[0-9a-f]{32}", name)
        assert said.hex() not in name


def _missing(path: str) -> None:
    raise FileNotFoundError(2, "No such file or directory", path)


def test_what_lies_there_but_is_not_the_jobs_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, a pipe, a file that others can open, one of another size, and one of another user: each is an error at
    once, with what was expected."""
    real, path = tmp_path / "real", tmp_path / "there"
    real.write_bytes(bytes(64))
    real.chmod(0o600)
    path.symlink_to(real)
    with pytest.raises(OSError, match="symbolic links"):
        shared_memory.open_file(str(path), 64)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(PermissionError, match="expected a file of mode 0600"):
        shared_memory.open_file(str(path), 64)
    os.close(shared_memory.open_file(str(real), 64))
    with pytest.raises(OSError, match="has 64 bytes; expected 128"):
        shared_memory.open_file(str(real), 128)
    real.chmod(0o660)
    with pytest.raises(PermissionError, match="mode 100660"):
        shared_memory.open_file(str(real), 64)
    real.chmod(0o600)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    expected = f"belongs to user {owner}; expected a file of mode 0600 of user {owner + 1}"
    with pytest.raises(PermissionError, match=expected):
        shared_memory.open_file(str(real), 64)


def test_a_rank_that_may_not_open_it_says_why(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the reason, and nobody waits."""
    create = shared_memory.create_file

    def public(path: str, size: int) -> object:
        memory = create(path, size)
        os.chmod(path, 0o666)
        return memory

    monkeypatch.setattr(shared_memory, "create_file", public)
    first, second = MemoryFabric(2).run(opened)
    assert first is None
    assert isinstance(second, TransportError)
    assert "expected a file of mode 0600" in str(second)
    assert not list(shared_folder.iterdir())


@pytest.mark.parametrize("steps", ["rr", "gg", "rg", "grrg", "rggrgr"])
def test_a_rank_that_reads_late_reads_what_was_meant_for_it(monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    """Reduce-scatters (r) and all-gathers (g) in any order: after each barrier one rank goes on only when the other two
    stand at the next one, where what they write meanwhile must not be what it has yet to read."""
    ranks, begun, moved = 3, [0] * 3, threading.Condition()

    def lagging(mesh: Mesh) -> Strand:
        with moved:
            begun[mesh.rank] += 1
            moved.notify_all()
        yield from barrier(mesh)
        if mesh.rank == 1:
            with moved:
                assert moved.wait_for(lambda: min(begun[0], begun[2]) > begun[1], 30)

    def work(mesh: Mesh) -> None:
        with mesh.operation(CALL):
            rows = SharedRows(mesh, row=64)
        monkeypatch.setattr(shared_memory, "barrier", lagging)
        pieces = [slice(0, 5), slice(5, 16), slice(16, 16)]
        with mesh.operation(CALL):
            for number, step in enumerate(steps):
                data = np.arange(16, dtype=np.int32) * (mesh.rank + 1) + number
                if step == "r":
                    run(mesh, rows.reduce_scatter(data, data, Reduction("sum", "int32"), pieces))
                    whole = np.arange(16) * 6 + 3 * number
                    assert (data[pieces[mesh.rank]] == whole[pieces[mesh.rank]]).all(), (steps, number)
                else:
                    run(mesh, rows.all_gather(data, pieces))
                    for rank, piece in enumerate(pieces):
                        assert (data[piece] == np.arange(16)[piece] * (rank + 1) + number).all(), (steps, number)
            with moved:
                begun[mesh.rank] += 1
                moved.notify_all()
        rows.close()

    values(MemoryFabric(ranks).run(work))
