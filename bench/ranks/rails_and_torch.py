# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench rails` that also trains: rails.py, with torch at the top.

    python -m netfold.bench.ranks.rails_and_torch TIMEOUT

The fork server imports torch once for all ranks, as it reads here that each of them trains (forked_program.py).
"""

from torch.nn.parallel import DistributedDataParallel  # noqa: F401

from netfold.bench.ranks.rails import main

if __name__ == "__main__":
    main()
