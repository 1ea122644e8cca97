# SPDX-License-Identifier: Apache-2.0
"""A process that imports what switches or ranks need, and that forks fork servers of sandboxes (warm.py).

    python warm_process.py FD MODULE...

Each message at FD, a SOCK_SEQPACKET socket, starts one; with the first it imports.  With a message come a file that
holds the JSON of its folder and its environment, the socket that it serves (topo/processes/fork_server.py), at which it
says its number first, and the namespaces of the sandbox.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from typing import Final

from netfold.topo.processes import fork_server, forked_program

KINDS: Final = ("user", "pid", "net", "mnt")
"""The namespaces of a sandbox: the first is the worker's own where that is root's, the last brings another /proc."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Fork servers until the socket is closed; in each process that one of them forks, run its program."""
    del sys.path[0]  # this folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, imported = socket.socket(fileno=int(sys.argv[1])), False
    while True:
        _, files, _, _ = socket.recv_fds(requests, 1, 2 + len(KINDS))
        if not files:
            return
        if not imported:
            forked_program.import_all(sys.argv[2:])
            gc.collect()
            gc.freeze()
            imported = True
        pid = os.fork()
        if pid == 0:
            requests.close()
            forked = _serve(*files)
            if forked is not None:
                forked_program.run(forked)
            return
        for file in files:
            os.close(file)
        os.waitpid(pid, 0)


def _serve(text: int, line: int, *namespaces: int) -> forked_program.Program | None:
    with open(text, "rb") as request:
        request.seek(0)
        folder, environment = json.load(request)
    for kind, file in zip(KINDS, namespaces, strict=True):
        ours = os.stat(f"/proc/self/ns/{kind}").st_ino == os.fstat(file).st_ino  # no process may enter its user's again
        if not ours and _libc.setns(file, 0):
            raise OSError(ctypes.get_errno(), f"entering a sandbox ({kind}): {os.strerror(ctypes.get_errno())}")
        os.close(file)
    if os.fork():  # the next process is in the sandbox's PID namespace
        os._exit(0)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    requests = socket.socket(fileno=line)
    requests.send(str(os.getpid()).encode())
    return fork_server.serve(requests)


if __name__ == "__main__":
    main()
