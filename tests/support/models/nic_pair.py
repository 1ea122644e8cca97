# SPDX-License-Identifier: Apache-2.0
"""Two software NICs on a network of their own, without any switch: what support/models/nic.py does is tested there."""

from __future__ import annotations

from collections.abc import Callable

from support.models.nic import Nic, QueuePair, Work
from support.models.nic_packets import Packet
from support.models.slot_model import SECOND, TerribleNetwork

ADDRESSES = ("10.2.0.1", "10.2.0.2")


class NicPair:
    """A NIC that sends and one that receives, and a queue pair between them.

    psn   first PSNs of both directions
    """

    def __init__(self, network: TerribleNetwork, *, path_mtu: int = 1024, psn: tuple[int, int] = (5, 9)) -> None:
        self.network = network
        self.wire: list[bytes] = []
        """Every frame that was sent."""
        self.nics = [Nic(network, self._from(place), (ADDRESSES[place],), path_mtu=path_mtu,
                         first_number=17 + 100 * place) for place in range(2)]
        self.out, self.into = (nic.create(nic.addresses[0]) for nic in self.nics)
        self.out.connect(ADDRESSES[1], self.into.number, psn[0], psn[1])
        self.into.connect(ADDRESSES[0], self.out.number, psn[1], psn[0])

    def _from(self, place: int) -> Callable[[bytes], None]:
        def transmit(frame: bytes) -> None:
            self.wire.append(frame)
            self.network.send(frame, self.nics[1 - place].receive)

        return transmit

    @property
    def ends(self) -> tuple[QueuePair, QueuePair]:
        """The queue pair at either end."""
        return self.out, self.into

    def post(self, *works: Work) -> None:
        """Posts messages to be sent."""
        for work in works:
            self.out.post(work)

    def run(self, limit: int = 20 * SECOND) -> None:
        """Runs until every message that was posted is complete, or the queue pair broke."""
        while self.out.works and not self.out.error:
            then = self.network.next_time()
            assert then < limit, f"stuck: {self.out}"
            self.network.step(then)

    def packets(self) -> list[Packet]:
        """The sent packets, parsed."""
        found = [Packet.parse(frame) for frame in self.wire]
        assert all(packet is not None for packet in found)
        return [packet for packet in found if packet is not None]
