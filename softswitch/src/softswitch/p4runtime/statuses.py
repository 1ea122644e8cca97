# SPDX-License-Identifier: Apache-2.0
"""How a refused request ends its call (P4Runtime 12): a gRPC status, and for a Write an error for each update."""

from __future__ import annotations

from typing import NoReturn

import grpc
from finsy.proto import p4r, rpc_code, rpc_status

from softswitch.engine.errors import EngineError

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def abort(context: grpc.ServicerContext, error: EngineError) -> NoReturn:
    """Ends the call with the status of an error."""
    context.abort(_CODES[error.code], str(error))


def abort_updates(context: grpc.ServicerContext, results: list[EngineError | None]) -> NoReturn:
    """Ends the call with UNKNOWN and, in its details, a p4.v1.Error for each update, OK for those that succeeded."""
    status = rpc_status.Status(code=rpc_code.UNKNOWN)
    for error in results:
        detail = p4r.Error(space="ALL-sswitch-p4org")
        if error is not None:
            detail.canonical_code, detail.message = error.code, str(error)
        status.details.add().Pack(detail)
    first = next(e for e in results if e is not None)
    failed = sum(e is not None for e in results)
    status.message = f"{failed} of {len(results)} updates failed; the first: {first}"
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, status.message)
