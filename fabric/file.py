# SPDX-License-Identifier: Apache-2.0
"""A fabric in a TOML file.

    [fabric]                          [[switch]]                        [[host]]
    name = "lab"                      name = "leaf1"                    name = "h1"
    engine = "softswitch"             role = "leaf"                     address = "10.0.1.1"
    jobs = "unix:/run/netfold.sock"   device_id = 1                     mac = "02:00:0a:00:01:01"
                                      grpc = "127.0.0.1:50051"            rdma = true  # optional
    [[link]]                          address = "10.255.0.1"
    a = "leaf1:1"                     mac = "02:00:0a:ff:00:01"
    b = "h1:0"
    rate = "1gbit"                    # optional, in tc's units
    loss = 0.01                       # optional, share of packets lost each way; duplicate, reorder, corrupt likewise

Optional in [fabric]: operator_token_file, job_token_file and viewer_token_file, files of mode 0600 with what callers
must know; certificate and key, PEM files, for TLS, with client_ca for certificates of clients; p4runtime_ca,
p4runtime_certificate and p4runtime_key for TLS with the switches, in [fabric] or in one [[switch]]; fabric_key_file,
which seals what ranks hold for the controller; state, where the controller keeps what operators have drained; all of
them relative to the fabric file.  A host with ``rdma`` has a NIC for RDMA, and a fold address.  A [[tenant]] has a
name, a token_file, and limits of what its jobs may take.

A file is checked as a whole before anything is done with it: `FabricError` names the field, what was expected and
what was found.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from netfold.disk import files
from netfold.fabric.graph import Fabric, FabricError, Host, Link, Settings, Switch, Tenant
from netfold.fabric.validity import validate

_SWITCH_FILES: Final = ("p4runtime_ca", "p4runtime_certificate", "p4runtime_key")
_TOKEN_FILES: Final = ("operator_token_file", "job_token_file", "viewer_token_file")
KEY_PARTS: Final = 64
"""Parts of a dotted key from which on a file is refused before it is parsed."""
_LONG_KEY: Final = re.compile(rf"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{KEY_PARTS}}}""")
_FILES: Final = (*_TOKEN_FILES, "certificate", "key", "client_ca", *_SWITCH_FILES, "fabric_key_file", "state")
"""Settings that name files."""


def load(path: Path) -> Fabric:
    """Read and check a fabric file.  Raises FabricError."""
    try:
        text = files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise FabricError(f"cannot read the fabric file {path}: {error}") from error
    fabric = loads(text, str(path))
    # paths in the file are relative to the file
    switches = tuple(_beside(path, switch, _SWITCH_FILES) for switch in fabric.switches)
    tenants = tuple(_beside(path, tenant, ("token_file",)) for tenant in fabric.tenants)
    return msgspec.structs.replace(_beside(path, fabric, _FILES), switches=switches, tenants=tenants)


def loads(text: str, where: str = "fabric") -> Fabric:
    """Parse and check TOML text; ``where`` names it in errors.  Raises FabricError."""
    if long_key := _LONG_KEY.search(text):  # tomllib needs 25 s for a key of 50,000 parts
        line = text.count("\n", 0, long_key.start()) + 1
        raise FabricError(f"{where}: line {line}: a key of more than {KEY_PARTS} parts: expected at most two, as in "
                          "fabric.name")
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also for a number of 5,000 digits
        raise FabricError(f"{where} is not TOML: {error}") from error
    try:
        document = msgspec.convert(found, _Document)
    except msgspec.ValidationError as error:
        raise FabricError(f"{where}: {_message(error)}") from error
    fabric = Fabric(
        **msgspec.structs.asdict(document.fabric),
        switches=tuple(document.switch),
        hosts=tuple(document.host),
        links=tuple(document.link),
        tenants=tuple(document.tenant),
    )
    try:
        validate(fabric)
    except FabricError as error:
        raise FabricError(f"{where}: {error}") from error
    return fabric


def dumps(fabric: Fabric) -> str:
    """The fabric as TOML text, which `loads` reads back equal."""
    head = {name: getattr(fabric, name) for name in Settings.__struct_fields__}
    parts = [_table("[fabric]", head)]
    for title, things in (("[[switch]]", fabric.switches), ("[[host]]", fabric.hosts), ("[[link]]", fabric.links),
                          ("[[tenant]]", fabric.tenants)):
        parts += [_table(title, msgspec.structs.asdict(thing)) for thing in things]
    return "\n".join(parts)


def save(fabric: Fabric, path: Path) -> None:
    """Write the TOML file, which `load` reads back.  Raises OSError."""
    files.replace(path, dumps(fabric))


Named = TypeVar("Named", bound=msgspec.Struct)


def _beside(path: Path, said: Named, fields: Iterable[str]) -> Named:
    """The same with the files that ``fields`` name relative to the folder of ``path``."""
    given = {name: str(path.parent / value) for name in fields if (value := getattr(said, name)) is not None}
    return msgspec.structs.replace(said, **given)


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The TOML document of a fabric file."""

    fabric: Settings
    switch: list[Switch]
    host: list[Host] = []
    link: list[Link] = []
    tenant: list[Tenant] = []


def _message(error: msgspec.ValidationError) -> str:
    """msgspec's message with the field in front, as `validity` writes it; for an unknown field, the known ones."""
    what, _, place = str(error).partition(" - at ")
    place = place.strip("`").removeprefix("$").removeprefix(".")
    if place == "fabric" and re.search("`token(_file)?`", what):
        return (f"fabric: {what}: a token has a scope now, and is in a file of mode 0600: operator_token_file for "
                "everything, job_token_file for ranks, viewer_token_file for status, metrics and page")
    if "unknown field" in what:
        kinds = {"fabric": Settings, "switch": Switch, "host": Host, "link": Link, "tenant": Tenant}
        kind = kinds.get(place.partition("[")[0], _Document)
        what += f": expected one of {', '.join(kind.__struct_fields__)}"
    return f"{place}: {what}" if place else what


def _table(title: str, values: dict[str, object]) -> str:
    # JSON's strings and numbers are TOML's as well, but for its escapes beyond U+FFFF, and for U+007F as it is
    given = {key: json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
             for key, value in values.items() if value is not None}
    return title + "\n" + "".join(f"{key} = {value}\n" for key, value in given.items())
