# SPDX-License-Identifier: Apache-2.0
"""Common parts of programs that run one rank: the check of their data, the exit status for wrong data, and messages to
the launcher, one JSON message per line of standard output.

Such checks are no assert statements, which `python -O` leaves out.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any, ParamSpec

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from netfold.topo.processes.failures import EXIT_WRONG_DATA, WrongData

P = ParamSpec("P")


def check_data(
    got: NDArray[Any], expected: ArrayLike, *, rank: int, operation: str, tolerance: float | NDArray[Any] = 0
) -> None:
    """Compare what a rank received with what is right.  Raises WrongData.

    expected   an array of the same shape, or one number for all elements
    operation  which one it was, for the message
    tolerance  how far each element may be off; 0: none may differ
    """
    right = np.asarray(expected)
    where = f"rank {rank}, {operation}"
    if right.ndim and right.shape != got.shape:
        raise WrongData(f"{where}: expected an array of shape {right.shape}, got {got.shape}")
    right = np.broadcast_to(right, got.shape)
    differs = got != right if np.ndim(tolerance) == 0 and tolerance == 0 else ~(np.abs(got - right) <= tolerance)
    wrong = np.flatnonzero(differs)
    if wrong.size:
        first = int(wrong[0])
        raise WrongData(f"{where}: {wrong.size} of {got.size} elements are wrong, the first at index {first}: "
                        f"expected {right.flat[first]}, got {got.flat[first]}")


def run_rank(program: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a rank's program.  Where its data is wrong, the process writes why and ends with EXIT_WRONG_DATA, even where
    an error of closing the connections follows."""
    try:
        program(*args, **kwargs)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, WrongData):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        traceback.print_exception(error)
        sys.exit(EXIT_WRONG_DATA)


def print_message(message: object) -> None:
    """Print a message at once, although standard output is a pipe.

    message  what msgspec encodes as JSON: a Struct, a dict, ...
    """
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()
