# SPDX-License-Identifier: Apache-2.0
"""The output of the stand-ins for BMv2's switches: on stdout and stderr, in the log, and for each packet, in BMv2's
words."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import sys
import threading
import types
from typing import IO, TYPE_CHECKING, Any, cast

from softswitch.runtime import files
from softswitch.runtime.log_lines import Lines

if TYPE_CHECKING:
    from softswitch.trace.recording import Live

PACKETS = "bmv2.packets"
"""The logger of the lines of packets' traces."""

LEVELS = {"trace": 5, "debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING,
          "error": logging.ERROR, "off": logging.CRITICAL + 1}
"""BMv2's levels of its log."""


class StartError(Exception):
    """The switch cannot start; the message, which goes to stdout as BMv2's, says why and what to do."""


class LogFiles(logging.handlers.RotatingFileHandler):
    """The log's files, which are opened through no other user's links."""

    def _open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(files.append(self.baseFilename))


class PacketLines(io.TextIOBase):
    """A stream for the lines of packets' traces, which go where the log goes, those of `level` and above."""

    _LEVELS = types.MappingProxyType({"T": 5, "D": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING})

    def __init__(self, level: int) -> None:
        self._log, self._level = logging.getLogger(PACKETS), level

    def write(self, text: str) -> int:
        """Logs each line by its letter, [12:34:56.789] [bmv2] [T] ..., and lines without one as those before them."""
        shown = True
        for line in text.splitlines():
            letter = line.partition("] [bmv2] [")[2][:1]
            if letter:
                shown = self._LEVELS.get(letter, logging.INFO) >= self._level
            if shown:
                self._log.log(logging.CRITICAL, "%s", line)
        return len(text)


def trace_to_log(general: dict[str, Any]) -> Live | None:
    """The trace of each packet in BMv2's words, where the log has a place for it: --log-console or --log-file, with a
    level of debug or trace. Programs are compiled for it then; else packets cost nothing more."""
    level = LEVELS[general.get("log-level", "trace")]
    if level > logging.DEBUG or not ("log-console" in general or "log-file" in general):
        return None
    from softswitch.trace.recording import Live

    return Live(cast("IO[str]", PacketLines(level)), "bmv2")


class Words(Lines):
    """Log lines in BMv2's form: [12:34:56.789] [bmv2] [I] [thread 4711] ..."""

    def __init__(self) -> None:
        super().__init__("[%(asctime)s.%(msecs)03d] [bmv2] [%(letter)s] [thread %(native)d] %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """One record as its line; the lines of a packet's trace have BMv2's form already."""
        if record.name == PACKETS:
            return record.getMessage()
        record.letter, record.native = record.levelname[0], threading.get_native_id()
        return super().format(record)


def set_up_log(general: dict[str, Any]) -> None:
    """Logs to stdout, to a file, or, warnings and errors alone, to stderr. Raises StartError."""
    level = LEVELS[general.get("log-level", "trace")]
    handlers: list[logging.Handler] = []
    if "log-console" in general:
        handlers.append(logging.StreamHandler(sys.stdout))
    if "log-file" in general:
        path = general["log-file"] + ".txt"
        try:
            size, kept = general.get("log-file-max-size", 5 << 20), general.get("log-file-max-files", 3)
            handlers.append(LogFiles(path, maxBytes=size, backupCount=kept))
        except OSError as error:
            raise StartError(f"--log-file: cannot open {path}: {error.strerror}") from error
    if not handlers:
        handlers, level = [logging.StreamHandler(sys.stderr)], max(level, logging.WARNING)
    root = logging.getLogger()
    for handler in handlers:
        handler.setFormatter(Words())
        root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("bmv2").setLevel(level)
    for noisy in ("asyncio", "grpc"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


def say(text: str) -> None:
    """A line on stdout, where BMv2 has its own; one that nobody can read does not end the switch."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def warn(text: str) -> None:
    """A line on stderr."""
    with contextlib.suppress(OSError):
        print(f"softswitch: {text}", file=sys.stderr, flush=True)
