# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a guest as if it ran here, as `mnexec -a` does for namespaces.

    python -m netfold.topo.agents.attach /tmp/netfold-x/h1.vm -- python train.py
    python -m netfold.topo.agents.attach --only RANK,WORLD_SIZE /tmp/netfold-x/node2.line -- python train.py

Environment, working directory and standard streams of this process become the command's, signals are handed on, and its
status becomes this one's, signals included.  Of the environment, only what --only names; without it, all but the
variables that choose code for this machine's processor.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Final

from netfold.topo.agents.frames import MOST, Kind, Splitter, pack

HANDED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGABRT, signal.SIGUSR1, signal.SIGUSR2,
                    signal.SIGQUIT)
GUEST_LOST: Final = 126
"""Exit status if the guest ended before the command did."""
PROCESSORS: Final = ("OPENBLAS_CORETYPE", "BLIS_ARCH_TYPE", "ATEN_CPU_CAPABILITY", "NPY_ENABLE_CPU_FEATURES")
"""Variables that choose code for this machine's processor.  In a guest, which has another one, a program with them ends
by SIGILL, or by an error of its import."""


def command(line: str, argv: Sequence[str], only: Collection[str] = ()) -> list[str]:
    """The command line that runs ``argv`` in the guest whose socket is ``line``.

    only  names of the environment variables that go with it; none: all but PROCESSORS
    """
    some = ["--only", ",".join(only)] if only else []
    return [sys.executable, "-m", "netfold.topo.agents.attach", *some, line, "--", *argv]


def run(line: str, argv: Sequence[str], only: Collection[str] = ()) -> int:
    """Run a command in the guest whose socket is ``line``; return its status, negative where a signal ended it.

    only  as in `command`
    """
    with socket.socket(socket.AF_UNIX) as guest, selectors.DefaultSelector() as selector:
        try:
            guest.connect(line)
        except OSError as error:
            print(f"cannot run {argv[0]} in a guest: {line}: {error.strerror}: it has ended, or was not started",
                  file=sys.stderr)
            return GUEST_LOST
        env = {name: value for name, value in os.environ.items() if (name in only if only else name not in PROCESSORS)}

        def send(kind: Kind, content: bytes = b"") -> None:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # no handler sends in the middle of a frame
            with contextlib.suppress(OSError):  # the other end is closed: the command's status, or nothing, can be read
                guest.sendall(pack(0, kind, content))
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

        def hand_on(number: int, _: FrameType | None) -> None:
            send(Kind.SIGNAL, bytes([number]))

        send(Kind.RUN, json.dumps({"argv": list(argv), "env": env, "cwd": os.getcwd()}).encode())
        for number in HANDED_ON:
            signal.signal(number, hand_on)
        selector.register(guest, selectors.EVENT_READ)
        reading = _watch_input(selector)
        if not reading:
            send(Kind.INPUT)
        splitter = Splitter()
        while True:
            for key, _ in selector.select():
                if key.fd != guest.fileno():
                    data = os.read(key.fd, MOST)
                    send(Kind.INPUT, data)
                    if not data:
                        selector.unregister(key.fileobj)
                        reading = False
                    continue
                try:
                    data = guest.recv(1 << 16)
                except ConnectionResetError:
                    data = b""
                if not data:
                    print(f"the guest of {line} has ended, and {argv[0]} with it", file=sys.stderr)
                    return GUEST_LOST
                for _, kind, content in splitter.feed(data):
                    if kind is Kind.EXIT:
                        return int(struct.unpack("!i", content)[0])
                    if kind in (Kind.HOLD, Kind.GO):
                        if reading and 0 in selector.get_map():
                            selector.unregister(0)
                        if reading and kind is Kind.GO:
                            _watch_input(selector)
                    else:
                        _write(1 if kind is Kind.OUTPUT else 2, content)


def _watch_input(selector: selectors.BaseSelector) -> bool:
    """Watch standard input; False where it is no file that can be watched, such as /dev/null."""
    try:
        selector.register(0, selectors.EVENT_READ)
    except (OSError, ValueError):
        return False
    return True


def _write(number: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever listened has gone; the command goes on, as into a closed pipe
        while data:
            data = data[os.write(number, data) :]


def main(argv: Sequence[str]) -> int:
    """The program: [--only NAME,...] LINE -- COMMAND ARG..."""
    only: list[str] = []
    if argv[:1] == ["--only"] and len(argv) > 1:
        only, argv = argv[1].split(","), argv[2:]
    if len(argv) < 3 or argv[1] != "--":
        print("usage: python -m netfold.topo.agents.attach [--only NAME,...] SOCKET -- COMMAND ARG...", file=sys.stderr)
        return 2
    status = run(argv[0], argv[2:], only)
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL and SIGSTOP have no other effect than the default
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
