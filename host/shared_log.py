# SPDX-License-Identifier: Apache-2.0
"""Messages about what all ranks of a job learn alike: rank 0 warns for all, and the others log them at level INFO."""

from __future__ import annotations

import logging


def level(rank: int) -> int:
    """The level at which a rank logs what the others log too."""
    return logging.WARNING if rank == 0 else logging.INFO
