# SPDX-License-Identifier: Apache-2.0
"""Token files of a test's fabric."""

from __future__ import annotations

from pathlib import Path

from netfold.fabric.graph import Tenant


def token_file(folder: Path, token: str) -> str:
    """A file with this token, for its owner alone."""
    path = folder / f"{token}.token"
    path.touch(0o600)
    path.write_text(f"{token}\n")
    return str(path)


def scopes(folder: Path) -> dict[str, str]:
    """Settings of a fabric whose tokens are "operators", "jobs" and "viewers"."""
    return {f"{scope}_token_file": token_file(folder, f"{scope}s") for scope in ("operator", "job", "viewer")}


def tenant(folder: Path, name: str, **limits: int) -> Tenant:
    """A tenant whose token is its name."""
    return Tenant(name, token_file(folder, name), **limits)  # type: ignore[arg-type]
