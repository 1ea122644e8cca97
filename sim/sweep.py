# SPDX-License-Identifier: Apache-2.0
"""Run independent simulations side by side: on this machine's cores, or on an engine that joblib is set up for.

    with joblib.parallel_config("dask"):        # or "ray", after ray.util.joblib.register_ray()
        sweep(point_function, points)
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

P = TypeVar("P")
R = TypeVar("R")


def sweep(function: Callable[[P], R], points: Sequence[P], *, jobs: int | None = None,
          echo: Callable[[str], None] = print) -> Iterator[R]:
    """``function(point)`` for every point, in order, as results come in.

    function   importable by name, since other processes call it
    jobs       processes; None: what joblib.parallel_config says, else one for each core
    echo       told once if joblib is not there, and all runs on one core
    """
    if importlib.util.find_spec("joblib") is None:
        if jobs not in (None, 1):
            raise ModuleNotFoundError(f"{jobs} jobs need joblib: pip install 'netfold[sim]'")
        echo("joblib is not installed, so the sweep runs on one core: pip install 'netfold[sim]'")
        yield from map(function, points)
        return
    import joblib
    from joblib.parallel import get_active_backend

    backend, configured = get_active_backend()
    if jobs is None and configured is None:
        jobs = -1
    streams = getattr(backend, "supports_return_generator", False)  # Ray's does not: all results come at the end
    run = joblib.Parallel(n_jobs=jobs, return_as="generator" if streams else "list")
    yield from run(joblib.delayed(function)(point) for point in points)
