# SPDX-License-Identifier: Apache-2.0
"""Errors of a fabric of real processes.  This module needs no Mininet, so that every command can catch them."""

from __future__ import annotations

from typing import Final

EXIT_WRONG_DATA: Final = 65
"""Exit status of a rank whose data is wrong: `os.EX_DATAERR`, which neither Python nor a shell uses by itself."""


class FabricFailed(RuntimeError):
    """The fabric or something on it failed; the message says what, where, and how the log ends."""


class ControllerFailed(FabricFailed):
    """The controller did not start serving, or ended on its own."""


class RankFailed(FabricFailed):
    """A rank ended with an error, or did not end in time."""


class SwitchFailed(FabricFailed):
    """A switch is not installed, did not answer, or ended on its own."""


class WrongData(FabricFailed):
    """A rank received data that is not what the ranks sent or summed.

    In the rank the message says: rank, operation, how many elements are wrong, the first index, expected and got.  Who
    waits for a rank that ended with EXIT_WRONG_DATA raises it with the job, the rank, its host and the end of its log.
    """


class WiringError(FabricFailed):
    """An interface or host could not be set up; the message has the command, where it ran, and its output."""
