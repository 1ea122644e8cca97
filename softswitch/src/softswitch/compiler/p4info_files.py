# SPDX-License-Identifier: Apache-2.0
"""P4Info as files, byte for byte as p4c writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finsy.proto import p4i

FORMATS = {".bin": "binary", ".json": "json", ".txt": "text", ".txtpb": "text"}
"""Ending of a file's name -> the format that p4c infers from it."""

_HEAD = "# proto-file: p4/config/v1/p4info.proto\n# proto-message: p4.config.v1.P4Info\n\n"


def written(message: p4i.P4Info, form: str) -> bytes:
    """The content of a file in one of p4c's formats: "binary", "json" or "text"."""
    from google.protobuf import json_format, text_format

    if form == "binary":
        return message.SerializeToString(deterministic=True)
    if form == "json":
        return json_format.MessageToJson(message).encode()
    return (_HEAD + text_format.MessageToString(message)).encode()
