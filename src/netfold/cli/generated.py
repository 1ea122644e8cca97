# SPDX-License-Identifier: Apache-2.0
"""The options of generated fabrics, for all commands that bring one up."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Final, get_origin, get_type_hints

import msgspec
import typer

from netfold.cli.common import checked, engine_of
from netfold.cli.options import PathMtu, SwitchKind
from netfold.fabric import generate
from netfold.fabric.graph import Fabric


@dataclass(frozen=True)
class Generated:
    """The options that go with --topo: engine, rates and injected faults."""

    switch: SwitchKind = "softswitch"
    rate: Annotated[str | None, typer.Option(help="Rate of every link, in tc's units: 100mbit, 1gbit. With planes, one "
                                                  "rate or one for each: 150mbit,75mbit.")] = None
    loss: Annotated[float, typer.Option(help="Share of packets lost on every link, each way: 0..1.")] = 0.0
    duplicate: Annotated[float, typer.Option(help="Share of packets that arrive twice.")] = 0.0
    reorder: Annotated[float, typer.Option(help="Share of packets held back for others to overtake.")] = 0.0
    corrupt: Annotated[float, typer.Option(help="Share of packets changed between a host and its leaf.")] = 0.0
    seed: Annotated[int, typer.Option(help="Seed of the faults: the same seed selects the same packets.")] = 0
    path_mtu: PathMtu = generate.PATH_MTU
    faults: Annotated[bool | None, typer.Option("--faults/--no-faults",
        help="Compile fault injection into the switches' program, for `netfold fault`; default: in `netfold up` and "
             "`demo --page`.")] = None

    def options(self) -> generate.FabricOptions:
        """The same options as `fabric.generate` takes them."""
        return {
            "engine": engine_of(self.switch), "rate": self.rate, "seed": self.seed, "path_mtu": self.path_mtu,
            "loss": self.loss, "duplicate": self.duplicate, "reorder": self.reorder, "corrupt": self.corrupt,
        }

    def fabric(self, topo: str) -> Fabric:
        """The fabric that --topo asks for."""
        return self._compiled(checked(lambda: generate.parse(topo, **self.options())))

    def planes(self, topo: str) -> list[Fabric]:
        """The fabrics of all planes that --topo asks for."""
        return [self._compiled(fabric) for fabric in checked(lambda: generate.parse_planes(topo, **self.options()))]

    def _compiled(self, fabric: Fabric) -> Fabric:
        return msgspec.structs.replace(fabric, faults=bool(self.faults))


DEFAULTS: Final = Generated()


def with_pages(planes: list[Fabric], metrics: str | None) -> list[Fabric]:
    """The planes with a page each, the first one's at ``metrics``; without pages where that is None."""
    from netfold.topo.network import listeners

    return planes if metrics is None else checked(lambda: listeners.with_pages(planes, metrics))


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function with dataclass parameters: each field with an option of typer's becomes one,
    and those of base classes come last."""
    groups: dict[str, type] = {}
    seen: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            seen.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        assert isinstance(kind, type)
        groups[parameter.name] = kind
        inner = get_type_hints(kind, include_extras=True)
        of_bases = {name: depth for depth, base in enumerate(kind.__mro__) for name in inspect.get_annotations(base)}
        seen += [inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                                   annotation=inner[field.name])
                 for field in sorted(fields(kind), key=lambda field: of_bases[field.name])
                 if get_origin(inner[field.name]) is Annotated]

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind) if field.name in given})
        command(**given)

    flat.__signature__ = inspect.Signature(seen)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in seen}
    return flat
