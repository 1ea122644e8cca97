# SPDX-License-Identifier: Apache-2.0
"""A rank on a mesh: sums by TidalMesh along its links, by a ring and by the switches, and says what took them."""

from __future__ import annotations

import json

import numpy as np

import netfold

with netfold.init(timeout=60.0) as comm:
    for algorithm in ("tidalmesh", "ring", "innet"):
        for size in (1, 1001, 150_000):
            parts = [np.random.default_rng([size, rank]).integers(-10**6, 10**6, size, np.int32)
                     for rank in range(comm.size)]
            found = comm.allreduce(parts[comm.rank], algorithm=algorithm)
            assert (found == np.sum(parts, axis=0)).all(), (algorithm, size)
    print(json.dumps([operation.path for operation in comm.flight()]))
