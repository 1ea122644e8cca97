# SPDX-License-Identifier: Apache-2.0
"""Callers: which token has which scope, and which tenant's jobs its holder may start.

    operator   everything
    job        joins jobs of its tenant, and what their ranks say; reads the status of its own jobs
    viewer     reads status, metrics, page, cables and paths

A fabric without any token file has no credentials: whoever reaches the controller may do everything, which is what the
permissions of a unix socket are for.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from netfold.fabric.graph import DEFAULT_TENANT, Fabric, FabricError, Tenant
from netfold.rpc import tokens
from netfold.rpc.limits import RateLimit
from netfold.rpc.rpc import Code, Refusal

log = logging.getLogger("netfold.controller")

Scope = Literal["operator", "job", "viewer"]
OPERATOR: Final[frozenset[Scope]] = frozenset({"operator"})
JOB: Final[frozenset[Scope]] = frozenset({"operator", "job"})
VIEWER: Final[frozenset[Scope]] = frozenset({"operator", "viewer"})
ANY: Final[frozenset[Scope]] = JOB | VIEWER


READ_RATE: Final = 20
"""Requests a second of a viewer, or of a tenant, that read the status and the like; READ_BURST at once.  Where the
fabric has no tokens, each address has them by the page, so that nobody takes those of all."""
READ_BURST: Final = 100
MAX_LIMITS: Final = 1024
"""Callers whose rates are known at the same time: the one that asked for the longest time ago is forgotten."""
WARNING_RATE: Final = 0.1
"""Most warnings per second about refused callers; each has their number."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request, identified by its token."""

    scope: Scope
    tenant: Tenant

    def __str__(self) -> str:
        return f"tenant {self.tenant.name!r}" if self.scope == "job" else f"the {self.scope}"


_NOBODY: Final = Caller("operator", Tenant(DEFAULT_TENANT))
CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=_NOBODY)
"""The caller of the request that is being answered."""


class Callers:
    """The callers of one fabric by their tokens, read from their files by `load`."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.default = fabric.tenant(DEFAULT_TENANT)
        self._callers: dict[str, Caller] = {}
        """Callers by token; empty: the fabric has no credentials."""
        self._where: dict[str, str] = {}
        self.limits: dict[tuple[Caller, str], RateLimit] = {}
        """The rates of callers at their addresses, those that asked last at the end."""
        self._lock = threading.Lock()
        self._warnings = RateLimit(WARNING_RATE, 1)
        self._refused = 0
        """Callers that were refused since the last warning."""
        self.tell_admitted: Callable[[str], object] = str
        """Called with the peer of each gRPC connection whose caller may join jobs, in gRPC's notation."""

    def load(self) -> None:
        """Read all files.  Raises FabricError for one that cannot be read, that others may read, or whose token another
        one has, too."""
        fabric = self._fabric
        self._read("fabric.operator_token_file", fabric.operator_token_file, Caller("operator", self.default))
        self._read("fabric.job_token_file", fabric.job_token_file, Caller("job", self.default))
        self._read("fabric.viewer_token_file", fabric.viewer_token_file, Caller("viewer", self.default))
        for number, tenant in enumerate(fabric.tenants):
            self._read(f"tenant[{number}].token_file", tenant.token_file, Caller("job", tenant))

    def _read(self, where: str, file: str | None, caller: Caller) -> None:
        if file is None:
            return
        try:
            token = tokens.read(Path(file), where)
        except tokens.TokenError as error:
            raise FabricError(str(error)) from error
        if token in self._callers:
            raise FabricError(f"{where}: {file} has the token of {self._where[token]}: expected one of its own, or the "
                              "scopes are one")
        self._callers[token], self._where[token] = caller, where

    @property
    def exist(self) -> bool:
        """True if there are any."""
        return bool(self._callers)

    @property
    def operator_token(self) -> str:
        """The operator's token; empty if there is none."""
        return next((token for token, caller in self._callers.items() if caller.scope == "operator"), "")

    def caller(self, token: str) -> Caller | None:
        """The caller with this token; None: there is none.  Takes as long for a good guess as for a bad one."""
        if not self._callers:
            return Caller("operator", self.default)
        said = token.encode(errors="surrogateescape")
        found = [caller for known, caller in self._callers.items() if hmac.compare_digest(said, known.encode())]
        return found[0] if found else None

    def admit(
        self, scopes: Collection[Scope], of: Mapping[str, Collection[Scope]] = {}, *, limited: bool = False
    ) -> Callable[[str, str, str], None]:
        """A function of a method, a token and the other end of the connection (rpc.Admit), which raises Refusal for a
        caller without one of these scopes.

        of       scopes of methods that have others, by method
        limited  whether callers other than the operator may make READ_RATE requests a second only
        """

        def admitted(method: str, token: str, peer: str = "") -> None:
            got = "one that this controller does not know" if token else "none"
            self.check(method, self.caller(token), of.get(method, scopes), got=got, limited=limited)
            if CALLER.get().scope in JOB:
                self.tell_admitted(peer)

        return admitted

    def check(
        self, method: str, caller: Caller | None, scopes: Collection[Scope], *, got: str, limited: bool, where: str = ""
    ) -> None:
        """Raises Refusal unless this caller may call a method of these scopes now.  Threads may share it.

        got      the token that came, in words, where it is nobody's
        limited  as of `admit`
        where    the address of a caller that has not said who it is: it has a rate of its own
        """
        wanted = " or ".join(sorted(scopes))
        if caller is None:
            self._warn(method, wanted, got)
            raise Refusal(Code.UNAUTHENTICATED, f"{method}: expected the token of scope {wanted}, got {got}. Name its "
                                                f"file in {tokens.TOKEN_FILE_VARIABLE}, or set {tokens.TOKEN_VARIABLE}")
        if caller.scope not in scopes:
            self._warn(method, wanted, f"that of {caller}")
            raise Refusal(Code.PERMISSION_DENIED, f"{method}: expected the token of scope {wanted}, got that of "
                                                  f"{caller}. Ask whoever runs the fabric for the right one")
        if limited and caller.scope != "operator" and (seconds := self._limit(caller, where).wait()):
            raise Refusal(Code.RESOURCE_EXHAUSTED, f"{method}: expected at most {READ_RATE} requests a second of "
                                                   f"{caller}, got more. Wait {seconds:.2f} s")
        CALLER.set(caller)

    def _limit(self, caller: Caller, where: str) -> RateLimit:
        with self._lock:
            limit = self.limits.pop((caller, where), None) or RateLimit(READ_RATE, READ_BURST)
            if len(self.limits) >= MAX_LIMITS:
                del self.limits[next(iter(self.limits))]
            self.limits[caller, where] = limit
        return limit

    def _warn(self, method: str, wanted: str, got: str) -> None:
        """Tell the operator of callers without the right token: a rank set up wrongly, or somebody who guesses."""
        self._refused += 1
        if not self._warnings.wait():
            log.warning("%d requests refused for their token since the last warning; now %s: expected the token of "
                        "scope %s, got %s", self._refused, method, wanted, got)
            self._refused = 0
