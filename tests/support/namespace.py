# SPDX-License-Identifier: Apache-2.0
"""Tests in network namespaces of their own: the kernel removes every process and interface, whatever happens.

    @in_own_network
    def test_something(tmp_path): ...       # runs as root of fresh namespaces, in a process of its own
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where this file is the program of a process
from support import ROOT, TESTS

P = ParamSpec("P")

_TIMEOUT = 120
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _unshare() -> list[str]:
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    return command if os.geteuid() == 0 else [*command, "--user", "--map-root-user"]


def in_own_network(test: Callable[P, None]) -> Callable[P, None]:
    """Runs a test in fresh network, mount and process namespaces."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        call = pickle.dumps((test.__module__, test.__qualname__, args, kwargs))
        command = [*_unshare(), sys.executable, __file__]
        done = subprocess.run(command, input=call, capture_output=True, timeout=_TIMEOUT)
        assert done.returncode == 0, f"in its namespace:\n{done.stdout.decode()}\n{done.stderr.decode()}"

    return pytest.mark.needs("namespaces")(pytest.mark.netns(run))


def _run() -> int:
    """The far side: exit status 0 where the test passed."""
    module, name, args, kwargs = pickle.load(sys.stdin.buffer)
    try:
        sh("mount -t proc proc /proc && mount -t tmpfs tmpfs /run && ip link set lo up")
        getattr(importlib.import_module(module), name).__wrapped__(*args, **kwargs)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def sh(command: str) -> None:
    """Runs a shell command; its complaint is the test's failure."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"{command}: {done.stderr}"


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Sockets made in this block belong to the named network namespace (this thread only)."""
    with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{name}") as there:
        _setns(there.fileno())
        try:
            yield
        finally:
            _setns(here.fileno())


def _setns(handle: int) -> None:
    if _libc.setns(handle, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


if __name__ == "__main__":
    sys.path[:0] = [str(TESTS), str(ROOT)]
    status = _run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)          # not held up by threads that a failed test left
