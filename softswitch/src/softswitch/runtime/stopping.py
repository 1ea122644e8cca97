# SPDX-License-Identifier: Apache-2.0
"""Waits for the signals that end a switch, SIGINT and SIGTERM."""

from __future__ import annotations

import signal
import socket

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Handles the signals from its making on; only for a process's main thread.

    The interpreter writes the number of each signal to a socket as it arrives. A handler that sets an event that the
    main thread waits for would not do: a signal just before the thread sleeps is handled when it wakes, which it then
    does not.
    """

    def __init__(self) -> None:
        self._arrived, self._arriving = socket.socketpair()
        self._arriving.setblocking(False)
        self._before = signal.set_wakeup_fd(self._arriving.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Returns when one of the signals has arrived."""
        while not set(self._arrived.recv(64)) & set(_SIGNALS):
            pass

    def close(self) -> None:
        """Ignores further signals: the process is ending."""
        for number in _SIGNALS:  # also while the interpreter ends, which takes back what it has set itself
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self._before)
        self._arrived.close()
        self._arriving.close()
