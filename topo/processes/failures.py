# SPDX-License-Identifier: Apache-2.0
"""Errors of a fabric of real processes.  This module needs no Mininet, so that every command can catch them."""

from __future__ import annotations

from typing import Final

EXIT_WRONG_DATA: Final = 65
"""Exit status of a rank whose data is wrong: `os.EX_DATAERR`, which neither Python nor a shell uses by itself."""


class FabricFailed(RuntimeError):
    """The fabric or something on it failed; the message says what, where, and how the log ends.

    Remedy: read the end of the log that the message shows; the command prints the folder of all logs.  `netfold doctor`
    lists the missing parts of the machine.
    """


class ControllerFailed(FabricFailed):
    """The controller did not start serving, or ended on its own.

    Remedy: read the end of its log in the message.  It names the field of the fabric, the address in use, or the switch
    that did not come up.
    """


class RankFailed(FabricFailed):
    """A rank ended with an error, or did not end in time.

    Remedy: read the rank's own traceback at the end of its log: it is the program's error, or one of the errors on this
    page.
    """


class SwitchFailed(FabricFailed):
    """A switch is not installed, did not answer, or ended on its own.

    Remedy: install the program that the message names as missing.  Otherwise read the first line of the switch's log,
    which it shows: an unknown option, or an interface or port in use.
    """


class WrongData(FabricFailed):
    """A rank received data that is not what the ranks sent or summed.

    In the rank the message says: rank, operation, how many elements are wrong, the first index, expected and got.  Who
    waits for a rank that ended with EXIT_WRONG_DATA raises it with the job, the rank, its host and the end of its log.

    Remedy: keep the logs and report it with the seed: no fault of the network may cause it.  If the program's own check
    raises it, first check that all ranks have the same data.
    """


class WiringError(FabricFailed):
    """An interface or host could not be set up; the message has the command, where it ran, and its output.

    Remedy: the message has the command that the kernel refused: a leftover interface of that name, a missing program
    (iproute2, ethtool), or missing rights.
    """
