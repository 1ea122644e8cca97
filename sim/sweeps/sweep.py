# SPDX-License-Identifier: Apache-2.0
"""Run independent simulations side by side: on this machine's cores, or on an engine that joblib is set up for.

    with engine("dask=10.0.0.1:8786"):          # or whatever joblib.parallel_config makes
        sweep(point_function, points)
"""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

P = TypeVar("P")
R = TypeVar("R")

ENGINES: Final = ("loky", "threading", "dask=HOST:PORT", "ray", "ray=ADDRESS")
CONNECT_SECONDS: Final = 10


class EngineError(Exception):
    """An engine is not installed or does not answer; the message says which, where, and what to do.

    Remedy: install what the message names, or start the cluster that it looked for; `--engine loky` needs neither.
    """


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Let sweeps run on one of `ENGINES`: processes or threads of this machine, or a running Dask or Ray cluster.

    Raises ValueError for another name, EngineError.
    """
    kind, _, address = name.partition("=")
    if kind not in ("loky", "threading", "dask", "ray") or (kind == "dask") > bool(address):
        raise ValueError(f"engine {name!r}: expected {', '.join(ENGINES)}")
    packages = {"loky": "joblib", "threading": "joblib", "dask": "distributed", "ray": "ray"}
    if missing := [one for one in ("joblib", packages[kind]) if importlib.util.find_spec(one) is None]:
        raise EngineError(f"engine {name!r} needs {missing[0]}: pip install {missing[0]}")
    import joblib

    with ExitStack() as stack:
        if kind == "dask":
            from distributed import Client

            try:
                stack.enter_context(Client(address, timeout=CONNECT_SECONDS))
            except (OSError, TimeoutError, ValueError) as error:
                raise EngineError(f"no Dask scheduler answers at {address} within {CONNECT_SECONDS} s ({error}): is "
                                  "`dask scheduler` running, with workers that have netfold installed?") from error
        elif kind == "ray":
            import ray
            from ray.util.joblib import register_ray

            if address and not _answers(address):
                raise EngineError(f"no Ray cluster answers at {address} within {CONNECT_SECONDS} s: does `ray start "
                                  "--head` run there, with netfold installed on all its machines?")
            try:
                ray.init(address=address or None)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise EngineError(f"no Ray cluster at {address or 'this machine'}: {error}; `ray start --head` makes "
                                  "one, without an address Ray begins one here") from error
            stack.callback(ray.shutdown)
            register_ray()
        stack.enter_context(joblib.parallel_config(kind))
        yield


def _answers(address: str) -> bool:
    """True if a server listens at ``ray://HOST:PORT`` or ``HOST:PORT``; Ray itself would try for minutes.

    Other forms of address, such as "auto", are left to Ray.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):
        return True
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError):
        return False
    return True


def sweep(function: Callable[[P], R], points: Sequence[P], *, jobs: int | None = None,
          echo: Callable[[str], None] = print) -> Iterator[R]:
    """Yield ``function(point)`` for every point, in order, as results arrive.

    function   must be importable by name, since other processes call it
    jobs       number of processes; None: as joblib.parallel_config sets it, else one for each core
    echo       receives a message where joblib is not installed, so that everything runs on one core
    """
    if importlib.util.find_spec("joblib") is None:
        if jobs not in (None, 1):
            raise ModuleNotFoundError(f"{jobs} jobs need joblib: pip install joblib")
        echo("joblib is not installed, so the sweep runs on one core: pip install joblib")
        yield from map(function, points)
        return
    import joblib
    from joblib.parallel import get_active_backend

    backend, configured = get_active_backend()
    if jobs is None and configured is None:
        jobs = -1
    streams = getattr(backend, "supports_return_generator", False)  # with Ray's, results arrive at the end
    run = joblib.Parallel(n_jobs=jobs, return_as="generator" if streams else "list")
    yield from run(joblib.delayed(function)(point) for point in points)
