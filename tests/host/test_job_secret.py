# SPDX-License-Identifier: Apache-2.0
"""Keys derived from a job's secret."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from netfold.host.errors import PlanError
from netfold.host.job_secret import KEY_BYTES, SECRET_BYTES, derive, draw
from netfold.wire.plan import Secret


def test_keys_are_hkdf_expand_of_rfc_5869() -> None:
    """One block: HMAC-SHA256 of the purpose, its context and the counter 1."""
    secret = draw()
    expected = hmac.new(bytes.fromhex(secret.value), b'["mesh","digits",7]' + b"\x01", hashlib.sha256).digest()
    assert derive(secret, "mesh", "digits", 7) == expected
    assert len(expected) == KEY_BYTES


def test_each_purpose_context_and_secret_has_a_key_of_its_own() -> None:
    """No two of them are equal, also where the joined texts are."""
    secret = draw()
    asked: list[tuple[str | int, ...]] = [
        ("mesh",), ("mesh", "a"), ("mesh", "a", 1), ("mesh", "a1"), ("mes", "ha", 1), ("mesh", "a", "1"),
        ("out of band", "a", 1), ('mesh","a',),
    ]
    keys = {derive(secret, str(purpose), *context) for purpose, *context in asked}
    keys.add(derive(draw(), "mesh"))
    assert len(keys) == len(asked) + 1


def test_drawn_secrets_are_random_and_not_shown() -> None:
    """32 bytes, different each time, and not in repr()."""
    one, other = draw(), draw()
    assert one != other
    assert len(bytes.fromhex(one.value)) == SECRET_BYTES
    assert one.value not in repr(one)


@pytest.mark.parametrize("value", ["", "00", "00" * 31, "00" * 33, "zz" * 32])
def test_what_is_no_secret_of_a_job_is_refused_without_showing_it(value: str) -> None:
    """A plan of an older controller, or one made by hand without a secret, does not open an unproven mesh."""
    with pytest.raises(PlanError, match="expected 32 bytes in hexadecimal digits") as raised:
        derive(Secret(value), "mesh")
    assert len(value) < 3 or value not in str(raised.value)
