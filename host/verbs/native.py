# SPDX-License-Identifier: Apache-2.0
"""The Python binding of the fold engine over libibverbs (native/verbs.h), built on first use with the rest of the
engine."""

from __future__ import annotations

import ctypes as C
import functools
from collections.abc import Sequence

from cbuild import cc
from netfold.host.errors import TransportError
from netfold.host.forked import disconnect, ends_in_child
from netfold.host.innet import native
from netfold.host.innet.core import Core
from netfold.host.innet.packet_link import SPAN_ROOM
from netfold.host.native.library import check_sizes, load, number
from netfold.host.tracing.spans import Span
from netfold.host.verbs.devices import RocePort
from netfold.wire.jobs import NeighbourPairs, OwnPairs

SOURCES = (*native.SOURCES, "verbs_pairs.c", "verbs.c")
LIBRARY = ("-libverbs",)
"""The linker flag for libibverbs."""
DONE, AGAIN, FAILED, BROKEN = range(4)
"""Results of ``VerbsIo.run``: ``nf_verbs_status``."""
PACKAGE_HINT = (
    "rail='verbs' needs libibverbs and its headers: apt install libibverbs-dev ibverbs-providers (Fedora: "
    "rdma-core-devel); where they lie elsewhere, CPATH and LIBRARY_PATH say so"
)


class Numbers(C.Structure):
    """``nf_verbs_numbers``: the queue pairs of one stream."""

    out_qp: int
    in_qp: int
    _fields_ = [("out_qp", C.c_uint32), ("in_qp", C.c_uint32)]


class Neighbour(C.Structure):
    """``nf_verbs_neighbour``: the peer of the queue pairs of one stream."""

    _fields_ = [(name, C.c_uint32) for name in ("peer", "peer_qp", "predecessor", "before_qp", "psn")]


@functools.cache
def library(libs: tuple[str, ...] = LIBRARY) -> C.CDLL:
    """The compiled engine with libibverbs, built for this CPU on first use.

    libs  linker flags that bring libibverbs
    Raises TransportError where libibverbs or its headers are missing, cbuild.cc.BuildError.
    """
    pointer, u32, u64, i64 = C.c_void_p, C.c_uint32, C.c_uint64, C.c_int64
    functions = {
        "nf_verbs_abi_size": (u32, u32),
        "nf_verbs_open": (pointer, pointer, C.c_char_p, u32, C.c_int32, C.c_int32),
        "nf_verbs_close": (None, pointer),
        "nf_verbs_why": (C.c_char_p, pointer),
        "nf_verbs_make": (C.c_bool, pointer, C.POINTER(Numbers)),
        "nf_verbs_connect": (C.c_bool, pointer, C.POINTER(Neighbour)),
        "nf_verbs_unmake": (None, pointer),
        "nf_verbs_run": (C.c_int, pointer, i64),
        "nf_verbs_interrupt_by": (None, pointer, C.c_int),
        "nf_verbs_descriptors": (None, pointer, C.POINTER(C.c_int32)),
        "nf_verbs_trace": (None, pointer, C.POINTER(Span), u64),
        "nf_verbs_traced": (u64, pointer, C.POINTER(u64)),
    }
    try:
        found = load(
            "netfold-verbs", SOURCES, native.functions() | functions, sizes="nf_abi_size",
            structures=native.STRUCTURES, flags=native.FLAGS, libs=libs,
        )
    except (cc.BuildError, OSError) as error:
        words = str(error)
        if "infiniband/verbs.h" in words or "libverbs" in words or "libibverbs" in words:
            raise TransportError(f"{PACKAGE_HINT}; the compiler says: {words.strip().splitlines()[-1]}") from error
        raise
    check_sizes(found, "nf_verbs_abi_size", (Neighbour, Numbers))
    return found


class VerbsIo:
    """A core over the queue pairs of an RDMA device.  Raises TransportError if the device refuses anything.

    core      made with this module's ``library``, messages, and twice the slots kept
    own_gid, fold_gid   places of the GIDs of this rank's own address and of its fold address
    """

    def __init__(
        self, core: Core, port: RocePort, own_gid: int, fold_gid: int, *, libs: tuple[str, ...] = LIBRARY
    ) -> None:
        self._lib = library(libs)
        self._core = core
        self.port = port
        self._handle = self._lib.nf_verbs_open(core.handle, port.device.encode(), port.port, own_gid, fold_gid)
        if not self._handle:
            raise MemoryError("no memory for queue pairs")
        if self.why:
            error = self._error()
            self.close()
            raise error
        ends_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: the device's objects belong to its parent, and end with the parent alone."""
        if self._handle:
            numbers = (C.c_int32 * 3)()
            self._lib.nf_verbs_descriptors(self._handle, numbers)
            disconnect(number for number in numbers if number > 0)

    @property
    def why(self) -> str:
        """Reason of the last failure; empty if nothing has failed."""
        return (self._lib.nf_verbs_why(self._handle) or b"").decode(errors="replace")

    def make(self) -> list[OwnPairs]:
        """Creates new queue pairs for all streams, in the order of ``Connect.pairs``, and destroys the old ones."""
        numbers = (Numbers * (2 * len(self._core.trees)))()
        if not self._lib.nf_verbs_make(self._handle, numbers):
            raise self._error()
        return [OwnPairs(out_qp=pair.out_qp, in_qp=pair.in_qp, address=0, rkey=0) for pair in numbers]

    def connect(self, pairs: Sequence[NeighbourPairs]) -> None:
        """Connects the queue pairs to the neighbours', and begins at each stream's present position in the core."""
        streams = [stream for tree in self._core.trees for stream in (tree.data, tree.agreement)]
        if len(pairs) != len(streams):
            raise ValueError(f"{len(pairs)} pairs of neighbours for {len(streams)} streams")
        neighbours = (Neighbour * len(streams))(
            *(
                Neighbour(number(stream.peer), pair.peer_qp, number(stream.predecessor), pair.predecessor_qp)
                for stream, pair in zip(streams, pairs, strict=True)
            )
        )
        if not self._lib.nf_verbs_connect(self._handle, neighbours):
            raise self._error()

    def interrupt_by(self, fd: int) -> None:
        """Makes ``run`` return AGAIN whenever ``fd`` is readable."""
        self._lib.nf_verbs_interrupt_by(self._handle, fd)

    def discard(self) -> None:
        """Destroys the queue pairs, whose messages belong to trees that are gone."""
        self._lib.nf_verbs_unmake(self._handle)

    def run(self, until: int) -> tuple[int, int]:
        """Runs until done, failed, broken (``why``), interrupted or CLOCK_MONOTONIC ``until`` (ns).  Returns the status
        (DONE ..), and 0."""
        return int(self._lib.nf_verbs_run(self._handle, until)), 0

    def trace(self) -> None:
        """Starts recording ``spans``."""
        self._spans = (Span * SPAN_ROOM)()
        self._lib.nf_verbs_trace(self._handle, self._spans, SPAN_ROOM)

    def spans(self) -> tuple[list[Span], int]:
        """The spans of the loop since the last call, oldest first (valid until ``run``), and how many more were not
        recorded."""
        lost = C.c_uint64()
        count = self._lib.nf_verbs_traced(self._handle, C.byref(lost))
        return self._spans[:count], lost.value

    def transient_errors(self) -> tuple[int, int]:
        """Always 0, 0: the device itself repeats requests that it refuses for a temporary reason."""
        return 0, 0

    def close(self) -> None:
        """Ends the queue pairs and closes the device; safe to call twice."""
        if self._handle:
            self._lib.nf_verbs_close(self._handle)
            self._handle = None

    def _error(self) -> TransportError:
        return TransportError(f"{self.port.device}: {self.why}")
