# SPDX-License-Identifier: Apache-2.0
"""Tests in network namespaces of their own: the kernel removes every process and interface, whatever happens.

    @in_own_network
    def test_something(tmp_path): ...       # runs as root of fresh namespaces, in a process of its own
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import ParamSpec

import pytest

P = ParamSpec("P")

_TIMEOUT = 120
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def unshare() -> list[str]:
    """The command before another one that shall run as root of fresh namespaces."""
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    return command if os.geteuid() == 0 else [*command, "--user", "--map-root-user"]


def in_own_network(test: Callable[P, None]) -> Callable[P, None]:
    """Runs a test in fresh network, mount and process namespaces."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        file = sys.modules[test.__module__].__file__
        call = pickle.dumps((sys.path, file, test.__name__)) + pickle.dumps((args, kwargs))
        command = [*unshare(), sys.executable, __file__]
        done = subprocess.run(command, input=call, capture_output=True, timeout=_TIMEOUT)
        assert done.returncode == 0, f"in its namespace:\n{done.stdout.decode()}\n{done.stderr.decode()}"

    return pytest.mark.needs("namespaces")(pytest.mark.netns(run))


def _run() -> int:
    """The far side: exit status 0 where the test passed."""
    path, file, name = pickle.load(sys.stdin.buffer)
    sys.path[:] = path  # without the folder of this file, whose modules have names of other packages
    try:
        args, kwargs = pickle.load(sys.stdin.buffer)
        sh("mount -t proc proc /proc && mount -t tmpfs tmpfs /run && ip link set lo up")
        spec = importlib.util.spec_from_file_location("in_own_network", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        getattr(module, name).__wrapped__(*args, **kwargs)
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
    status = _run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)          # not held up by threads that a failed test left
