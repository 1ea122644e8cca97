# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests on lost ranks: the last one dies, stops or stays away in the middle of a job.

    rank_lost.py RAIL kill|stop|stay TIMEOUT FOLDER     each other rank prints what it was told, as JSON

Nobody leaves before all have been told: the others' questions are about this rank's slots, too.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from netfold.host.api.communicator import Communicator
from netfold.host.client import fold_client
from netfold.host.errors import NetFoldError
from netfold.host.mesh import operations
from netfold.host.rails import missing_ranks, out_of_band

ELEMENTS = 100_000
STAY = 120.0
BOUND = 100.0
"""Seconds for the others to be told."""


def bear_a_busy_machine() -> None:
    """Ranks that wait for the lost one have longer to say so: one that stands still for a moment is not lost."""
    operations.GRACE_FRACTION = 1.0
    fold_client.MISSING_TIMEOUT = 15.0
    missing_ranks.ANSWER_SECONDS = 2.0
    out_of_band.CONNECT_SECONDS = 2.0


def main(rail: str, way: str, timeout: float, folder: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    job, address = os.environ["NETFOLD_JOB"], os.environ["NETFOLD_ADDRESS"]
    with Communicator.join(job, rank, world, address=address, rail=rail, timeout=timeout) as comm:  # type: ignore[arg-type]
        array = np.ones(ELEMENTS, np.float32)
        comm.allreduce(array)
        if rank == world - 1:
            if way == "stay":
                time.sleep(STAY)
            number = signal.SIGKILL if way == "kill" else signal.SIGSTOP
            threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        begin = time.monotonic()
        try:
            while True:
                begin = time.monotonic()
                comm.allreduce(array)
        except NetFoldError as error:
            seconds = time.monotonic() - begin
            last = comm.flight()[-1]
            told = {"kind": type(error).__name__, "text": str(error), "seconds": seconds, "number": last.number,
                    "state": last.state, "path": last.path}
            print(json.dumps(told), flush=True)
            (folder / f"told {rank}").touch()
            until = time.monotonic() + BOUND
            while len(list(folder.glob("told *"))) < world - 1 and time.monotonic() < until:
                time.sleep(0.01)


if __name__ == "__main__":
    bear_a_busy_machine()
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
