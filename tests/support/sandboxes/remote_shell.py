# SPDX-License-Identifier: Apache-2.0
"""A command on another machine over TCP, in the place of ssh in tests: without encryption, and for namespaces alone.

    python remote_shell.py serve 10.99.0.2             # on the machine; prints a line once it listens
    python remote_shell.py 10.99.0.2 program word      # runs it there, with standard input and output of this process

The command ends up with the connection as its standard input and output, so a cut network is silence, as with ssh.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading

PORT = 2222


def serve(address: str) -> None:
    with socket.create_server((address, PORT)) as server:
        print("listening", flush=True)
        while True:
            connection, _ = server.accept()
            (length,) = struct.unpack("!I", connection.recv(4, socket.MSG_WAITALL))
            argv = json.loads(connection.recv(length, socket.MSG_WAITALL))
            subprocess.Popen(argv, stdin=connection, stdout=connection)
            connection.close()


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
    serve(sys.argv[2]) if sys.argv[1] == "serve" else call(sys.argv[1], sys.argv[2:])
