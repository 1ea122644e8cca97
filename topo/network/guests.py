# SPDX-License-Identifier: Apache-2.0
"""Hosts of a fabric that are no namespaces: what a `Network` asks of them, and tells them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class GuestLink:
    """The link of such a host and its leaf.

    fold_address  second address of the host, to which switches alone address packets; "": none
    params        of the link's interface (`FabricIntf.config`)
    """

    guest: str
    guest_port: int
    mac: str
    address: str
    fold_address: str
    leaf: str
    leaf_port: int
    leaf_mac: str
    params: dict[str, Any]


@dataclass(frozen=True)
class Surroundings:
    """The resources that a network provides to its guests.

    leaves   nodes of Mininet by name; no switch has been started yet, and each guest adds its port
    logs     folder for logs
    folder   for sockets; its path is short
    share    existing folder that guests read and write
    sockets  unix sockets that guests reach, such as the controller's
    """

    links: Sequence[GuestLink]
    leaves: Mapping[str, Any]
    logs: Path
    folder: Path
    share: Path
    sockets: Sequence[Path]


class GuestHosts(Protocol):
    """Hosts of a network that are started and stopped with it."""

    @property
    def names(self) -> Collection[str]:
        """Which hosts these are."""

    def start(self, around: Surroundings) -> None:
        """Start them; the ports of their leaves are there then."""

    def wait_ready(self) -> None:
        """Wait until programs can run in all of them."""

    def check(self) -> None:
        """Raise FabricFailed where one has ended."""

    def stop(self) -> None:
        """End them; may be called twice."""

    def enter(self, name: str) -> list[str]:
        """The command that runs the one after it in the host ``name``."""
