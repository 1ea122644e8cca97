# SPDX-License-Identifier: Apache-2.0
"""One rank that times allreduce by gloo: allreduce_rank.py, with torch at the top.

    python -m netfold.topo.processes.gloo_rank '{"world": 8, "algorithms": ["gloo"], ...}'

The fork server imports torch once for all ranks (forked_program.py), as it reads here that each of them needs it.
Otherwise each rank would import it, for two to three seconds of processor time.
"""

import torch.distributed  # noqa: F401

from netfold.topo.processes.allreduce_rank import main

if __name__ == "__main__":
    main()
