# SPDX-License-Identifier: Apache-2.0
"""What may fail on a fabric of real processes.  Needs no Mininet, so that every command can catch it."""

from __future__ import annotations


class FabricFailed(RuntimeError):
    """The fabric or something on it failed: says what, where, and with what last words."""


class ControllerFailed(FabricFailed):
    """The controller did not come up, or ended on its own."""


class RankFailed(FabricFailed):
    """A rank ended with an error, or did not end in time."""


class SwitchFailed(FabricFailed):
    """A switch is not installed, did not come up, or ended on its own."""


class WiringError(FabricFailed):
    """An interface or host could not be set up: says the command, where it ran, and what it said."""
