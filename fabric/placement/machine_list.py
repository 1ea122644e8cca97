# SPDX-License-Identifier: Apache-2.0
"""The file that lists the machines of a fabric, one a line:

    # name     options
    node1      address=10.1.0.1              # its IPv4 address towards the others; default: what its name resolves to
    node2      address=10.1.0.2  share=2     # takes twice as many switches and hosts as a machine of share 1

The name is what the launcher takes (`ssh NAME`).  The first machine runs the controller too.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from netfold.disk import files
from netfold.fabric.graph import FabricError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}(@[A-Za-z0-9][A-Za-z0-9._-]{0,62})?", re.ASCII)
"""Names of machines, USER@NAME too, without characters that are special to a shell or an option parser."""
MOST: Final = 256
"""Most machines of a fabric."""
MOST_BYTES: Final = 1 << 20
"""Most bytes of such a list, comments included."""


@dataclass(frozen=True)
class ListedMachine:
    """A machine that runs a part of a fabric.

    address  IPv4 address by which the other machines' cables reach it
    share    of the load, relative to the others
    """

    name: str
    address: str
    share: int = 1


def load(path: Path) -> list[ListedMachine]:
    """Read a list of machines.  Raises FabricError."""
    try:
        text = files.read_text(path, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise FabricError(f"cannot read the list of machines {path}: {error}") from error
    return loads(text, str(path))


def loads(text: str, where: str = "machines", resolve: Callable[[str], str] = socket.gethostbyname
          ) -> list[ListedMachine]:
    """Read the text of such a file; ``where`` names it in errors.  Raises FabricError."""
    found: list[ListedMachine] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        here = f"{where}, line {number}"
        name, options = words[0], dict.fromkeys(("address", "share"), "")
        if not NAME.fullmatch(name):
            raise FabricError(f"{here}: machine {name!r}: expected a name of letters, digits and .-_, or USER@NAME")
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if key not in options or not equals or options[key]:
                raise FabricError(f"{here}: {word!r}: expected address=IPV4 or share=NUMBER, each once")
            options[key] = value
        found.append(ListedMachine(name, _address(here, name, options["address"], resolve),
                                   _share(here, options["share"] or "1")))
    if not 1 <= len(found) <= MOST:
        raise FabricError(f"{where}: expected 1 to {MOST} machines, one a line, got {len(found)}")
    for what in ("name", "address"):
        seen: set[str] = set()
        for machine in found:
            value = getattr(machine, what)
            if value in seen:
                raise FabricError(f"{where}: two machines have the {what} {value}")
            seen.add(value)
    return found


def _address(here: str, name: str, given: str, resolve: Callable[[str], str]) -> str:
    try:
        text = given or resolve(name.rpartition("@")[2])
        address = ipaddress.IPv4Address(text)
    except (OSError, ValueError) as error:
        raise FabricError(f"{here}: machine {name}: expected an IPv4 address, or a name that resolves to one: "
                          f"{error}; give address=IPV4") from error
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise FabricError(f"{here}: machine {name}: {address}: expected an address that the other machines reach; give "
                          "address=IPV4")
    return str(address)


def _share(here: str, text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise FabricError(f"{here}: share={text}: expected a whole number from 1 to 9999")
    return int(text)
