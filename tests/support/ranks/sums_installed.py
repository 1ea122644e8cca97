# SPDX-License-Identifier: Apache-2.0
"""Two ranks in one process, which sum by an installed netfold over the rail that is named: prints "exact"."""

from __future__ import annotations

import sys

import numpy as np

from netfold import testing

RANKS = 2
ARRAY = np.arange(100_000, dtype=np.float32)

with testing.loopback_job(RANKS, rail=sys.argv[1]) as comms:
    for total in testing.on_every_rank(comms, lambda comm: comm.allreduce(ARRAY + comm.rank)):
        np.testing.assert_array_equal(total, RANKS * ARRAY + sum(range(RANKS)))
print("exact")
