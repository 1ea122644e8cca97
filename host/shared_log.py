# SPDX-License-Identifier: Apache-2.0
"""Messages about facts that all ranks of a job learn: rank 0 logs them as warnings, the others at level INFO."""

from __future__ import annotations

import logging


def level(rank: int) -> int:
    """The level at which this rank logs messages that all ranks log."""
    return logging.WARNING if rank == 0 else logging.INFO
