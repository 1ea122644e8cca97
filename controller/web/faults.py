# SPDX-License-Identifier: Apache-2.0
"""Faults and recorded packets by the page: requests that it forwards to the fault service of a local fabric's launcher
(wire/faults.py).

There is one only where the launcher of the fabric serves it, on a unix socket of this user alone; the page's own caller
must be the operator, which serve.py sees to.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from netfold.rpc import local
from netfold.rpc.rpc import CallRefused, Unreachable
from netfold.wire import faults as wire
from netfold.wire.operator import EventKind, Note, unnoted

TIMEOUT: Final = 8.0
"""Seconds for the service to answer."""


class FaultRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /fault: a fault, in the words of wire.faults.Inject."""

    kind: wire.Kind
    target: str
    seconds: float | None = None
    amount: float | None = None
    seed: int | None = None
    one_way: bool = False


class FaultUndo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /fault: ends the fault with this number; null: all."""

    undo: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None


class PacketRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /packet: records a packet's way, in the words of wire.faults.RecordPacket."""

    host: str
    job: str = ""
    tree: str = ""


class FaultOutcome(NamedTuple):
    """The result of a request: an HTTP status, and a sentence, the list of faults or a packet's way."""

    status: HTTPStatus
    text: str
    faults: wire.ActiveFaults | None = None
    packet: wire.RecordedPacket | None = None


class FaultForwarder:
    """Forwards to the service at ``path``; None: there is none here.

    note  records faults that begin and end
    call  sends one request and returns the answer: for tests
    key   what a caller has to know where the fabric has no tokens; empty: nobody can
    """

    def __init__(
        self, path: Path | None, note: Note = unnoted,
        call: Callable[[Path, msgspec.Struct], wire.Answer] | None = None, *, key: str = "",
    ) -> None:
        self._path = path
        self._key = key
        self._note = note
        self._call = call or _call
        self._known: dict[int, wire.ActiveFault] = {}

    @classmethod
    def of_environment(cls, note: Note = unnoted) -> FaultForwarder:
        """The forwarder to the launcher that started this process, if it serves faults."""
        said = os.environ.get(wire.FAULTS_VARIABLE)
        return cls(Path(said) if said else None, note, key=os.environ.get(wire.KEY_VARIABLE, ""))

    @property
    def is_there(self) -> bool:
        """True if this fabric has such a service."""
        return self._path is not None

    def knows(self, password: bytes) -> bool:
        """True if this password proves that a caller has the page's address from the launcher.  Takes as long for a
        good guess as for a bad one."""
        return bool(self._key) and hmac.compare_digest(password, self._key.encode())

    def inject(self, body: bytes) -> FaultOutcome:
        """Begin or end a fault as the body of a POST asks; raises msgspec.ValidationError and DecodeError for one that
        asks for neither."""
        if self._path is None:
            return FaultOutcome(HTTPStatus.CONFLICT, "this fabric has no fault service: only one has that netfold up "
                                                     "--topo, run --topo or demo has started")
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        asked: wire.Request
        if "undo" in fields:
            asked = wire.Undo(msgspec.json.decode(body, type=FaultUndo).undo)
        else:
            said = msgspec.json.decode(body, type=FaultRequest)
            asked = msgspec.convert({"type": "Inject", **msgspec.structs.asdict(said)}, type=wire.Inject)
        match self._ask(self._path, asked):
            case wire.Injected() as done:
                assert isinstance(asked, wire.Inject)
                kind: EventKind = "killed" if asked.kind == "kill" else "fault"
                self._note(kind, asked.target, done.text)
                return FaultOutcome(HTTPStatus.OK, done.text)
            case wire.Undone() as done:
                return FaultOutcome(HTTPStatus.OK, "; ".join(done.texts) or "there was no fault")
            case wire.Refused() as refused:
                status = HTTPStatus.CONFLICT if refused.conflict else HTTPStatus.BAD_REQUEST
                return FaultOutcome(status, refused.why)
            case other:
                return FaultOutcome(HTTPStatus.SERVICE_UNAVAILABLE, f"the fault service answered {other!r}")

    def record(self, body: bytes) -> FaultOutcome:
        """Record the way of a packet as the body of a POST asks; raises msgspec.ValidationError and DecodeError for one
        that does not."""
        said = msgspec.json.decode(body, type=PacketRequest)
        if self._path is None:
            return FaultOutcome(HTTPStatus.CONFLICT,
                                "packets are recorded on a fabric of this machine alone, one that netfold up --topo, "
                                "run --topo or demo has started: not on one over several machines, nor on switches "
                                "that were there already")
        asked = msgspec.convert({"type": "RecordPacket", **msgspec.structs.asdict(said)}, type=wire.RecordPacket)
        match self._ask(self._path, asked):
            case wire.RecordedPacket() as packet:
                return FaultOutcome(HTTPStatus.OK, "", packet=packet)
            case wire.Refused() as refused:
                return FaultOutcome(HTTPStatus.CONFLICT if refused.conflict else HTTPStatus.BAD_REQUEST, refused.why)
            case other:
                return FaultOutcome(HTTPStatus.SERVICE_UNAVAILABLE, f"the fault service answered {other!r}")

    def active(self) -> FaultOutcome:
        """The faults that are there; those that are new or gone since the last time are recorded."""
        if self._path is None:
            return FaultOutcome(HTTPStatus.OK, "", wire.ActiveFaults("", [], False))
        match self._ask(self._path, wire.Active()):
            case wire.ActiveFaults() as found:
                now = {fault.number: fault for fault in found.faults}
                for number in self._known.keys() - now.keys():
                    self._note("fault ended", self._known[number].target, self._known[number].text)
                self._known = now
                return FaultOutcome(HTTPStatus.OK, "", found)
            case wire.Refused() as refused:
                return FaultOutcome(HTTPStatus.CONFLICT, refused.why)
            case other:
                return FaultOutcome(HTTPStatus.SERVICE_UNAVAILABLE, f"the fault service answered {other!r}")

    def _ask(self, path: Path, request: msgspec.Struct) -> wire.Answer:
        try:
            return self._call(path, request)
        except (Unreachable, CallRefused) as error:
            return wire.Refused(str(error), conflict=True)


def _call(path: Path, request: msgspec.Struct) -> wire.Answer:
    answer: wire.Answer
    answer, files = local.call(path, request, wire.Answer, TIMEOUT)
    for file in files:
        os.close(file)
    return answer
