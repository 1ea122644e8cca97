# SPDX-License-Identifier: Apache-2.0
"""What the bindings of the C engines in native/ share: the build on first use, and what both engines hand over.

``folding.native`` and ``roce.native`` name their sources, functions and structures; ctypes lets go of the GIL in them.
"""

from __future__ import annotations

import ctypes as C
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbuild import cc

HOME = Path(__file__).parent
NEVER = (1 << 63) - 1
"""A deadline that never comes."""
RUN_PACKETS = 60
"""NF_RUN_PACKETS, NF_RC_RUN: of a super-packet at most."""


class Sender(C.Structure):
    """nf_sender: the socket that packets with this UDP source port leave by."""

    _fields_ = [("port", C.c_uint32), ("fd", C.c_int32)]


@dataclass(frozen=True)
class Run:
    """Packets that leave as one super-packet: UDP payloads of ``segment`` bytes each, the last one maybe shorter."""

    data: bytes
    segment: int
    source_port: int
    destination: str

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
) -> C.CDLL:
    """An engine, compiled for this CPU unless that is done already.

    sources     file names beside this one
    functions   name -> types of its result and its arguments
    sizes       the function that says how many bytes C gives to the i-th of ``structures``
    flags       of the compiler, beyond -O3
    Raises cbuild.cc.BuildError.
    """
    path = cc.build(
        [HOME / source for source in sources],
        kind="shared",
        name=name,
        flags=["-O3", *flags, "-fvisibility=default"],
        optional_flags=["-march=native"],
        libs=["-lpthread"],
    )
    lib = C.CDLL(str(path))
    for symbol, (result, *arguments) in functions.items():
        function = getattr(lib, symbol)
        function.restype, function.argtypes = result, arguments
    size = getattr(lib, sizes)
    for which, kind in enumerate(structures):
        if size(which) != C.sizeof(kind):
            raise cc.BuildError(
                f"{path}: {kind.__name__} has {size(which)} bytes in C and {C.sizeof(kind)} in Python: "
                f"{kind.__module__} and host/native/*.h are of different versions"
            )
    return lib


def senders_table(senders: Mapping[int, socket.socket]) -> C.Array[Sender]:
    """As C takes them: UDP source port -> the socket bound to it."""
    return (Sender * len(senders))(*(Sender(port, sender.fileno()) for port, sender in senders.items()))


def number(address: str) -> int:
    """A dotted IPv4 address as a number.  Raises ValueError."""
    try:
        return int(ipaddress.IPv4Address(address))
    except ValueError:
        raise ValueError(f"address {address!r}: expected a dotted IPv4 address") from None


def dotted(address: int) -> str:
    """``number``'s inverse."""
    return str(ipaddress.IPv4Address(address))
