# SPDX-License-Identifier: Apache-2.0
"""One rank that drives NCCL's plug-in from a process of Python (support/hosts/native/nccl_driver.c).

    python rank_nccl.py DRIVER PLUGIN FOLDER WHAT    prints what the driver's program does

DRIVER  the library
"""

import ctypes
import os
import sys


def main(driver: str, plugin: str, folder: str, what: str) -> int:
    calls = ctypes.CDLL(driver)
    calls.place(folder.encode())
    failed: int = calls.drive(plugin.encode(), what.encode(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    print("failed" if failed else "as it must be")
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
