# SPDX-License-Identifier: Apache-2.0
"""Common parts of the Python bindings of the C engines in native/: building on first use, and structures.

``innet.native`` and ``roce.native`` name their sources, functions and structures; ctypes releases the GIL in them.
"""

from __future__ import annotations

import ctypes as C
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbuild import cc

HOME = Path(__file__).parent
NEVER = (1 << 63) - 1
"""A deadline, in nanoseconds, that never comes."""
PROCESSOR_VARIABLE = "NETFOLD_PROCESSOR"
"""Environment variable with the processor that engines are compiled for, as gcc's -march names it ("x86-64-v2"):
machines of several kinds then share compiled engines.  Default: this machine's own."""
RUN_PACKETS = 60
"""Most packets of a super-packet: NF_RUN_PACKETS and NF_RC_RUN."""


class Sender(C.Structure):
    """``nf_sender``: the socket from which packets with this UDP source port are sent."""

    _fields_ = [("port", C.c_uint32), ("fd", C.c_int32)]


class Origin(C.Structure):
    """``nf_origin``: where a packet came from, as the kernel says."""

    source: int
    """IPv4 address (``number``)."""
    source_port: int
    """UDP source port; 0: unknown."""
    ttl: int
    """TTL with which it arrived; -1: unknown."""
    _fields_ = [("source", C.c_uint32), ("source_port", C.c_uint16), ("ttl", C.c_int16)]

    @classmethod
    def of(cls, address: str, source_port: int, ttl: int = -1) -> Origin:
        """The origin with this dotted IPv4 address.  Raises ValueError for what is none."""
        return cls(number(address), source_port, ttl)

    def __str__(self) -> str:
        return f"{dotted(self.source)}:{self.source_port}" + (f" with TTL {self.ttl}" if self.ttl >= 0 else "")


@dataclass(frozen=True)
class Run:
    """Packets that are sent as one super-packet: UDP payloads of ``segment`` bytes each, of which the last may be
    shorter."""

    data: bytes
    segment: int
    source_port: int
    destination: str
    destination_port: int

    def packets(self) -> list[bytes]:
        """The UDP payloads one by one."""
        return [self.data[i : i + self.segment] for i in range(0, len(self.data), self.segment)]


def load(
    name: str,
    sources: Sequence[str],
    functions: Mapping[str, tuple[Any, ...]],
    *,
    sizes: str,
    structures: Sequence[type[C.Structure]],
    flags: Sequence[str] = (),
    libs: Sequence[str] = (),
) -> C.CDLL:
    """Loads an engine, compiled for this CPU on first use.

    sources     file names in this folder
    functions   name -> types of its result and its arguments
    sizes       the function that returns the size in bytes that C gives to the i-th of ``structures``
    flags       compiler flags besides -O3
    libs        linker flags besides -lpthread
    Raises cbuild.cc.BuildError.
    """
    processor = os.environ.get(PROCESSOR_VARIABLE, "")
    path = cc.build(
        [HOME / source for source in sources],
        kind="shared",
        name=name,
        flags=["-O3", *flags, "-fvisibility=default", *([f"-march={processor}"] if processor else [])],
        optional_flags=[] if processor else ["-march=native"],
        libs=["-lpthread", *libs],
    )
    lib = C.CDLL(str(path))
    for symbol, (result, *arguments) in functions.items():
        function = getattr(lib, symbol)
        function.restype, function.argtypes = result, arguments
    check_sizes(lib, sizes, structures)
    return lib


def check_sizes(lib: C.CDLL, sizes: str, structures: Sequence[type[C.Structure]]) -> None:
    """Raises cbuild.cc.BuildError where C and Python lay a structure out differently; the arguments are ``load``'s."""
    size = getattr(lib, sizes)
    for which, kind in enumerate(structures):
        if size(which) != C.sizeof(kind):
            raise cc.BuildError(
                f"{lib._name}: {kind.__name__} has {size(which)} bytes in C and {C.sizeof(kind)} in Python: "
                f"{kind.__module__} and host/native/*.h are of different versions"
            )


def senders_table(senders: Mapping[int, socket.socket]) -> C.Array[Sender]:
    """The C array of ``Sender`` for UDP source ports and the sockets bound to them."""
    return (Sender * len(senders))(*(Sender(port, sender.fileno()) for port, sender in senders.items()))


def number(address: str) -> int:
    """A dotted IPv4 address as a number.  Raises ValueError."""
    try:
        return int(ipaddress.IPv4Address(address))
    except ValueError:
        raise ValueError(f"address {address!r}: expected a dotted IPv4 address") from None


def dotted(address: int) -> str:
    """The dotted IPv4 address of a number; the inverse of ``number``."""
    return str(ipaddress.IPv4Address(address))
