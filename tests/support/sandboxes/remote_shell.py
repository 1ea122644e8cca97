# SPDX-License-Identifier: Apache-2.0
"""A command on another machine over TCP, in the place of ssh in tests: without encryption, and for namespaces alone.

    serve("10.99.0.2", listening)                      # on the machine, in a process of its own
    python remote_shell.py 10.99.0.2 program word      # runs it there, with standard input and output of this process

The command ends up with the connection as its standard input and output, so a cut network is silence, as with ssh.  A
Python program runs in a fork of the server, which is one of the test, and so has imported what that needs.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

PORT = 2222


def serve(address: str, listening: int) -> NoReturn:
    """Serve calls.  ``listening``: descriptor that is closed once a call can come."""
    with socket.create_server((address, PORT)) as server:
        os.close(listening)
        while True:
            connection, _ = server.accept()
            (length,) = struct.unpack("!I", connection.recv(4, socket.MSG_WAITALL))
            _start(json.loads(connection.recv(length, socket.MSG_WAITALL)), connection, server)
            connection.close()


def _start(argv: Sequence[str], connection: socket.socket, server: socket.socket) -> None:
    from netfold.topo.processes import forked_program

    program = forked_program.of(argv, os.environ, os.getcwd())
    if program is None:
        subprocess.Popen(argv, stdin=connection, stdout=connection)
    elif os.fork() == 0:
        status: object = 1
        try:
            server.close()
            for number in (0, 1):
                os.dup2(connection.fileno(), number)
            connection.close()
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
            forked_program.become(program, argv, dict(os.environ))
            forked_program.run(program)
            status = 0
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status if isinstance(status, int) else 1)


def call(address: str, argv: list[str]) -> None:
    with socket.create_connection((address, PORT)) as connection:
        said = json.dumps(argv).encode()
        connection.sendall(struct.pack("!I", len(said)) + said)

        def out() -> None:
            with contextlib.suppress(OSError):
                while data := connection.recv(1 << 16):
                    while data:
                        data = data[os.write(1, data) :]
            os._exit(0)

        threading.Thread(target=out, daemon=True).start()
        while data := os.read(0, 1 << 16):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        threading.Event().wait(30)


if __name__ == "__main__":
    call(sys.argv[1], sys.argv[2:])
