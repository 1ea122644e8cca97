# SPDX-License-Identifier: Apache-2.0
"""Tokens: what a caller proves its scope with, sent with every call as `authorization: Bearer TOKEN` (RFC 6750).

Tokens come from files that only their owner may read, or from the environment; never from the command line, which
every user of a machine may read, and never into a log.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TOKEN_VARIABLE: Final = "NETFOLD_TOKEN"
"""Has a token, for ranks and commands that are not given one otherwise."""
TOKEN_FILE_VARIABLE: Final = "NETFOLD_TOKEN_FILE"
"""Names the file with that token; it goes before NETFOLD_TOKEN."""
MAX_TOKEN: Final = 1024
"""Most characters of a token."""

_HEADER: Final = "authorization"
_SCHEME: Final = "Bearer "


class TokenError(Exception):
    """There is no token where one was expected; the message has the file or variable, and what to do.

    Remedy: put a token of one line without spaces into a file of mode 0600 (`python -c 'import secrets;
    print(secrets.token_hex(32))'`), and name it in NETFOLD_TOKEN_FILE or the fabric file.
    """


def read(path: Path, where: str) -> str:
    """The token in a file, less white space around it.  Raises TokenError for a file that others may read or write, or
    that has no token in it.

    where  the setting that names the file, for messages
    """
    try:
        with path.open("rb") as file:
            mode, text = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(2 * MAX_TOKEN)
    except OSError as error:
        raise TokenError(f"{where}: cannot read {path}: {error.strerror}") from error
    if mode & 0o077:
        raise TokenError(f"{where}: {path}: expected mode 0600, got {mode:04o}: others may know the token. Draw a new "
                         f"one, and `chmod 600 {path}`")
    token = text.decode(errors="replace").strip()
    if not token:
        raise TokenError(f"{where}: {path} is empty: expected the token in it")
    return checked(token, f"{where}: {path}")


def given() -> str:
    """The token that the environment gives this process; empty if it gives none.  Raises TokenError."""
    if path := os.environ.get(TOKEN_FILE_VARIABLE):
        return read(Path(path), TOKEN_FILE_VARIABLE)
    token = os.environ.get(TOKEN_VARIABLE, "")
    return checked(token, TOKEN_VARIABLE) if token else ""


def checked(token: str, where: str) -> str:
    """The token, which must be one that a header can carry.  Raises TokenError, which does not show it."""
    if not re.fullmatch(rf"[!-~]{{1,{MAX_TOKEN}}}", token):
        raise TokenError(f"{where}: expected a token of 1 to {MAX_TOKEN} printable ASCII characters without spaces, "
                         "such as `openssl rand -hex 32` draws")
    return token


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    """The gRPC metadata of a call with this token; none without one."""
    return ((_HEADER, _SCHEME + token),) if token else ()


def of_call(pairs: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The token in the metadata of a call; empty if there is none."""
    for name, value in pairs or ():
        if name == _HEADER and isinstance(value, str) and value.startswith(_SCHEME):
            return value.removeprefix(_SCHEME)
    return ""
