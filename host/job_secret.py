# SPDX-License-Identifier: Apache-2.0
"""Keys and names that the ranks of a job derive from its secret (``Plan.secret``), one for each purpose.

    key = derive(plan.secret, "mesh", plan.job, plan.epoch)

A key says nothing about the secret nor about the keys of other purposes (HKDF-Expand of RFC 5869 with SHA-256, section
2.3; a secret of 32 random bytes needs no extraction, section 3.3).
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

import msgspec

from netfold.host.errors import PlanError
from netfold.wire.plan import Secret

SECRET_BYTES: Final = 32
KEY_BYTES: Final = 32
"""Bytes of a derived key, which is one block of SHA-256."""


def draw() -> Secret:
    """A new secret, for a job that no controller has planned."""
    return Secret(secrets.token_hex(SECRET_BYTES))


def derive(secret: Secret, purpose: str, *context: str | int) -> bytes:
    """The 32 bytes that only ranks which know the secret can derive, the same for the same purpose and context.

    Raises PlanError for an invalid secret.
    """
    try:
        key = bytes.fromhex(secret.value)
    except ValueError:
        key = b""
    if len(key) != SECRET_BYTES:
        raise PlanError(
            f"the plan's secret: expected {SECRET_BYTES} bytes in hexadecimal digits, got {len(secret.value)} "
            "characters that are not; join by a controller of this version, or give all ranks' plans the same "
            "netfold.host.job_secret.draw()"
        )
    return hmac.digest(key, msgspec.json.encode((purpose, *context)) + b"\x01", "sha256")
