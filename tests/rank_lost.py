# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests on lost ranks: the last one dies, stops or stays away in the middle of a job.

    rank_lost.py RAIL kill|stop|stay TIMEOUT        each other rank prints what it was told, as JSON
"""

import json
import os
import signal
import sys
import threading
import time

import numpy as np

from netfold.host.communicator import Communicator
from netfold.host.errors import NetFoldError

ELEMENTS = 100_000
STAY = 60.0


def main(rail: str, way: str, timeout: float) -> None:
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
                    "state": last.state, "path": last.path}  # fmt: skip
            print(json.dumps(told), flush=True)
            time.sleep(0.5)  # the others' questions are answered while this rank's slots are still there


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
