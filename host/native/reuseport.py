# SPDX-License-Identifier: Apache-2.0
"""Several sockets on one address and port, each of which gets the datagrams of certain destination queue pairs.

Sockets bound with SO_REUSEPORT form a group, numbered in order of binding; a classic BPF program, attached to any of
them, sees the UDP payload and returns the number of the socket that gets it.  Where there is no socket of that number
yet, the kernel chooses one by a hash of its own.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import Final

from netfold.host.errors import TransportError
from netfold.wire import roce

Instruction = tuple[int, int, int, int]
"""A BPF instruction: code, jump if true, jump if false, operand."""
SO_ATTACH_REUSEPORT_CBPF: Final = 51
"""The socket option's number in <asm/socket.h>."""
_FORMAT: Final = struct.Struct("=HBBI")


def by_highest_bit(bit: int) -> tuple[Instruction, ...]:
    """A program by which socket 0 gets queue pairs with this bit of 24, one of the highest eight, and socket 1 all
    others."""
    return (
        (0x30, 0, 0, 5),  # A = byte 5 of the payload: the queue pair's highest byte
        (0x45, 0, 1, bit >> 16),
        (0x06, 0, 0, 0),
        (0x06, 0, 0, 1),
    )


def by_remainder(sockets: int) -> tuple[Instruction, ...]:
    """A program by which socket l gets the connections whose number is l modulo the number of sockets
    (``Plan.machines``)."""
    return (
        (0x20, 0, 0, 4),  # A = bytes 4..7: flags, and 24 bits of queue pair
        (0x54, 0, 0, 0xFFFFFF),
        (0x74, 0, 0, roce.OPERATION_BITS),
        (0x94, 0, 0, sockets),
        (0x16, 0, 0, 0),
    )


def steer(member: socket.socket, program: tuple[Instruction, ...]) -> None:
    """Attaches a program to the group of a bound socket.  Raises TransportError."""
    code = ctypes.create_string_buffer(b"".join(_FORMAT.pack(*one) for one in program))
    fprog = struct.pack("@HP", len(program), ctypes.addressof(code))
    try:
        member.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, fprog)
    except OSError as error:
        raise TransportError(
            error.errno,
            f"the kernel does not dispatch UDP port {roce.UDP_PORT} by queue pair (SO_ATTACH_REUSEPORT_CBPF): "
            f"{error.strerror}; give each rank an address of its own, and use either folding or queue pairs on it",
        ) from error
