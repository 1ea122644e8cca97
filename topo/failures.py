# SPDX-License-Identifier: Apache-2.0
"""Errors of a fabric of real processes.  This module needs no Mininet, so that every command can catch them."""

from __future__ import annotations


class FabricFailed(RuntimeError):
    """The fabric or something on it failed; the message says what, where, and how the log ends."""


class ControllerFailed(FabricFailed):
    """The controller did not start serving, or ended on its own."""


class RankFailed(FabricFailed):
    """A rank ended with an error, or did not end in time."""


class SwitchFailed(FabricFailed):
    """A switch is not installed, did not answer, or ended on its own."""


class WiringError(FabricFailed):
    """An interface or host could not be set up; the message has the command, where it ran, and its output."""
