# SPDX-License-Identifier: Apache-2.0
"""One rank of the end-to-end tests: every operation that folds, against what this rank knows of all ranks' arrays.

    python rank_operations.py SEED   prints {"path_mtu", "retransmissions", "digest"}; ends with EXIT_WRONG_DATA
                                    where a result is wrong
"""

import hashlib
import json
import sys
import warnings
from functools import partial

import numpy as np

import netfold
from netfold.host.innet import quantise
from netfold.topo.processes.rank_program import check_data, run_rank

LENGTHS = (1, 1025, 20_001)


def main(seed: int) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)  # of saturation, which we look at ourselves
    digest = hashlib.sha256()
    with netfold.init(rail="innet") as comm:
        assert comm.rail == "innet", comm.explain(4096)
        check = partial(check_data, rank=comm.rank)
        for length in LENGTHS:
            draws = [np.random.default_rng([seed, rank, length]) for rank in range(comm.size)]
            ints = [rng.integers(-(2**31), 2**31, length, np.int32) for rng in draws]
            floats = [rng.standard_normal(length, np.float32) for rng in draws]
            own, mine = ints[comm.rank], floats[comm.rank]
            exact = np.sum(ints, axis=0, dtype=np.int64)

            total = comm.allreduce(own)
            check(total, exact.astype(np.int32), operation=f"sum of int32[{length}]")
            check(comm.allreduce(own, op="max"), np.max(ints, axis=0), operation=f"max of int32[{length}]")
            check(comm.allreduce(mine, op="min"), np.min(floats, axis=0), operation=f"min of float32[{length}]")

            cut = comm.allreduce(own, saturate=True)
            ends = (cut == 2**31 - 1) | (cut == -(2**31))
            saturating = f"saturating sum of int32[{length}]"
            check(cut[~ends], exact[~ends], operation=f"{saturating}, within the range")
            check(ends[exact != exact.astype(np.int32)], True, operation=f"{saturating}, at an end where it overflows")

            whole = comm.allreduce(mine)
            right = np.sum(floats, axis=0, dtype=np.float64)
            check(whole, right, operation=f"sum of float32[{length}]", tolerance=1e-5)
            digest.update(total.tobytes() + whole.tobytes())
            for bits in (16, 8):
                agreed = np.maximum.reduce([quantise.scales(x, bits) for x in floats])
                lanes = np.sum([quantise.narrow(x, agreed, comm.size, bits) for x in floats], axis=0)
                got = comm.allreduce(mine, lane_bits=bits, rounding="nearest")
                right = quantise.widen(lanes, agreed, comm.size, bits)
                check(got, right, operation=f"sum of float32[{length}] in {bits} bits")
                digest.update(got.tobytes())
        again, mtu = comm.stats().retransmissions, comm.plan.path_mtu
        print(json.dumps({"path_mtu": mtu, "retransmissions": again, "digest": digest.hexdigest()}))


run_rank(main, int(sys.argv[1]))
