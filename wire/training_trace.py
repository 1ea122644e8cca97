# SPDX-License-Identifier: Apache-2.0
"""The file in which a rank records its training (host/torch/recording.py), and which `netfold what-if` replays: JSON,
one file a rank.

The events are those of one program, in order.  What lies between the end of one and the begin of the next is computing.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from netfold.wire.bounds import Count, Name, Seconds
from netfold.wire.flight import MAX_RANKS

FORMAT: Final = "netfold-training-1"
MAX_EVENTS: Final = 200_000
"""Most events of a file, some 10 MB."""

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all",
               "barrier", "send", "recv"]
OPERATORS: Final[dict[str, tuple[Kind, int]]] = {
    "allreduce_": ("all_reduce", 0), "allreduce_coalesced_": ("all_reduce", 0), "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0), "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0), "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1), "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0), "reduce_": ("reduce", 0), "gather_": ("gather", 1), "scatter_": ("scatter", 0),
    "alltoall_": ("all_to_all", 1), "alltoall_base_": ("all_to_all", 1), "barrier": ("barrier", 0),
    "send": ("send", 0), "recv_": ("recv", 0),
}
"""torch's operators, c10d::NAME: what each is, and the place of the whole buffer among its arguments; for gather and
scatter that of a rank's part."""
RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]


class TracedGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process group: its name, which is the same on all of its ranks, and these, by their numbers in the job."""

    name: Name
    ranks: Annotated[tuple[RankNumber, ...], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]


class TracedCall(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A collective, or a message to or from one peer, that the program has called."""

    begin: Seconds
    """Seconds since the recording began; ``end``: when the call returned to the program."""
    end: Seconds
    number: Count
    """By which a `TracedWait` names it."""
    kind: Kind
    group: Count
    """Index in `RankTrace.groups`."""
    nbytes: Count
    """Bytes of the whole buffer, as nccl-tests counts them: what an all_gather gathers, a reduce_scatter or all_to_all
    takes, of all ranks together for gather and scatter."""
    dtype: Name
    asynchronous: bool
    """True if the program asked for a call that returns before its result is ready."""
    peer: RankNumber = 0
    """Place in the group of the root, or of the other end of a message; 0 where there is none."""


class TracedWait(msgspec.Struct, frozen=True, array_like=True, tag="wait"):
    """The program waits for the result of a call."""

    begin: Seconds
    end: Seconds
    number: Count


class TracedStep(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """A step of training ends, and the next one begins."""

    begin: Seconds
    end: Seconds


TracedEvent = TracedCall | TracedWait | TracedStep


class RankTrace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one rank's file.  The first event and the last are steps, with whole steps between them."""

    format: Literal["netfold-training-1"]
    rank: RankNumber
    world: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    backend: Name
    """The backend that carried the collectives while they were recorded, such as gloo."""
    groups: list[TracedGroup]
    events: Annotated[list[TracedEvent], msgspec.Meta(max_length=MAX_EVENTS)]
