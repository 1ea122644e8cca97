# SPDX-License-Identifier: Apache-2.0
"""Bounds of what a request may say, which msgspec checks before anything else sees it.

JSON has numbers and strings of any size.  These types keep every field of a request within what the code behind it can
add up, wait for and print; what a field means is checked there.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

MAX_TEXT: Final = 4096
MAX_LAST: Final = 200
"""Most characters of the message that a leaving rank has for the others: some words, and an error's first line."""

Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
"""A number that is looked up or checked further: a rank, an epoch, a port."""
QueuePair = Annotated[int, Meta(ge=2, lt=2**24)]
"""The number of a queue pair that a NIC has chosen; InfiniBand reserves 0 and 1."""
RemoteKey = Annotated[int, Meta(ge=0, lt=2**32)]
"""The rkey of a NIC's memory region."""
Address = Annotated[int, Meta(ge=0)]
"""An address in a NIC's memory region, 64 bits: msgspec can state no bound above 2**63, so the receiver checks it."""
Count = Annotated[int, Meta(ge=0, lt=2**62)]
"""Packets, bytes, operations: sums of some of them still fit 64 bits."""
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
"""A duration, for which an event loop can wait."""
Share = Annotated[float, Meta(ge=0, le=1)]
"""A part of a whole."""
Name = Annotated[str, Meta(max_length=255)]
"""The name of a job, switch, link or collective, or an address."""
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
"""A reason, for people."""
Last = Annotated[str, Meta(max_length=MAX_LAST)]
"""The text of a rank that leaves, for the others."""
MAX_STREAMS: Final = 4096
"""Most streams that a request names."""
MAX_FLOWS: Final = 4096
"""Most flows that a request names, and most steps in which they are."""
MAX_RAILS: Final = 64
"""Most rails of which a rank reports."""
