# SPDX-License-Identifier: Apache-2.0
"""A process that imports what switches or ranks need, and that forks fork servers of sandboxes (warm.py).

    python warm_process.py LIFE LISTENER MODULE...

LIFE and LISTENER are descriptors of SOCK_SEQPACKET sockets.  When the other end of LIFE is closed, it ends.  Each
message over a connection to LISTENER starts one; with the first it imports.  With a message come a file that holds the
JSON of its folder and its environment, the socket that it serves (topo/processes/fork_server.py), at which it says its
number first, and the namespaces of the sandbox.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Final

from netfold.topo.processes import fork_server, forked_program

KINDS: Final = ("user", "pid", "net", "mnt")
"""The namespaces of a sandbox: the first is the worker's own where that is root's, the last brings another /proc."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Fork servers until LIFE is closed; in each process that one of them forks, run its program."""
    del sys.path[0]  # this folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    life, listener = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    lines, imported = [life, listener], False
    while True:
        line = select.select(lines, [], [])[0][0]
        if line is life:
            return
        if line is listener:
            lines.append(listener.accept()[0])
            continue
        _, files, _, _ = socket.recv_fds(line, 1, 2 + len(KINDS))
        if not files:
            lines.remove(line)
            line.close()
            continue
        if not imported:
            forked_program.import_all(sys.argv[3:])
            gc.collect()
            gc.freeze()
            imported = True
        pid = os.fork()
        if pid == 0:
            for each in lines:
                each.close()
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
