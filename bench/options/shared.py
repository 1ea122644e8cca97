# SPDX-License-Identifier: Apache-2.0
"""Options that several benchmarks share, with their flags and help texts, and how they are checked.

A benchmark's options are a frozen dataclass.  A field that has an option of typer's is an option of the command; a
field without one is for programs alone.  Whoever makes the structure, options are checked when it is made: a ValueError
names the option, what it was, and what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NoReturn, get_args, get_type_hints

import msgspec
import typer

from netfold.disk import files
from netfold.fabric.generate import parse_planes
from netfold.fabric.generate.assemble import PATH_MTU
from netfold.fabric.graph import Engine, Fabric, FabricError, bits_per_second, rate_in_words
from netfold.wire import roce

UNSHAPED: Final = "none"
"""The rate of links that are not shaped, as options name it."""
UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

Rounds = Annotated[int, typer.Option(help="Times that everything has its turn; the median counts.")]
Rows = Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the rows here, as JSON.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Write figures and their data here.")]
Switch = Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")]
Rate = Annotated[str, typer.Option(help="Rate of every link, in tc's units, or none: not shaped. Planes may have one "
                                        "each: 150mbit,75mbit.")]
Ranks = Annotated[int, typer.Option(help="Ranks, one on each host; default: as many as --topo has, and "
                                    "without it a fabric for as many as this says.")]
RanksPerHost = Annotated[int, typer.Option(help="Ranks on each host, which share its link.")]
Topo = Annotated[str, typer.Option("--topo", help="The fabric, as `netfold up --topo` takes it.")]
Loss = Annotated[float, typer.Option(help="Share of packets lost on every link of the fabric, each way.")]
PathMtu = Annotated[int, typer.Option(help="Payload bytes of a packet: 1024, or 4096 over jumbo frames.")]
Seed = Annotated[int, typer.Option(help="Seed of data and losses.")]
Iterations = Annotated[int, typer.Option("-n", "--iters", help="Timed operations in a round.")]
Bytes = Annotated[str, typer.Option("--bytes", help="Size of the tensor: bytes, or with K, M, G.")]
Sizes = Annotated[str, typer.Option(help="Sizes of the tensor by commas: bytes, or with K, M, G.")]
Begin = Annotated[str, typer.Option("-b", "--begin", "--minbytes", help="Smallest tensor: bytes, or with K, M, G.")]
End = Annotated[str, typer.Option("-e", "--end", "--maxbytes", help="Largest tensor.")]
Timeout = Annotated[float, typer.Option(help="Seconds for one operation.")]


def size(text: str) -> int:
    """The number of bytes of a text that may end in K, M or G, for powers of 1024; -1 if it is none."""
    scale = UNITS.get(text[-1:].upper(), 1)
    number = text[:-1] if scale > 1 else text
    return int(number) * scale if number.isdecimal() else -1


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of a benchmark, which say what is wrong with them."""

    def __post_init__(self) -> None:
        """Check the options, and fill in what follows from others.  Raises ValueError."""

    def refuse(self, field: str, expected: str, value: object = None) -> NoReturn:
        """Raise a ValueError that names the option of a field, its value or the wrong part of it, and what was
        expected."""
        (option,) = get_args(get_type_hints(type(self), include_extras=True)[field])[1:]
        flag = option.default if isinstance(option.default, str) else f"--{field.replace('_', '-')}"
        value = getattr(self, field) if value is None else value
        raise ValueError(f"{flag} {f'{value:g}' if isinstance(value, float) else value}: expected {expected}")

    def need(self, least: int, *fields: str) -> None:
        """Check that options are numbers of at least ``least``."""
        for field in fields:
            if not least <= getattr(self, field) < math.inf:
                self.refuse(field, f"{least} or more" + (", and a finite number" if least <= 0 else ""))

    def need_positive(self, *fields: str) -> None:
        """Check that options are finite numbers above 0."""
        for field in fields:
            if not 0 < getattr(self, field) < math.inf:
                self.refuse(field, "more than 0, and a finite number")

    def need_one(self, field: str, known: Collection[object]) -> None:
        """Check that an option is one of those known."""
        if getattr(self, field) not in known:
            self.refuse(field, f"one of {', '.join(map(str, known))}")

    def names(self, field: str, known: Collection[str], *, none: bool = False) -> tuple[str, ...]:
        """The names of an option with commas, each once.

        none  whether there may be none
        """
        found = tuple(dict.fromkeys(name.strip() for name in getattr(self, field).split(",") if name.strip()))
        for name in found:
            if name not in known:
                self.refuse(field, f"some of {', '.join(known)}", name)
        if not found and not none:
            self.refuse(field, f"at least one of {', '.join(known)}")
        return found

    def bytes_of(self, field: str, least: int = 4) -> int:
        """The bytes that an option says."""
        if (found := size(getattr(self, field))) < least:
            self.refuse(field, f"{least} bytes or more, or a number with K, M or G behind it")
        return found

    def sizes_of(self, field: str, least: int = 4) -> list[int]:
        """The bytes that an option says, by commas."""
        found = [size(text) for text in getattr(self, field).split(",")]
        if min(found) < least:
            self.refuse(field, f"{least} bytes or more by commas, as 4K,1M")
        return found

    def _set(self, **values: Any) -> None:
        """Fill in fields that follow from others."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class RoundsOptions(BenchOptions):
    """Rounds, in which everything has its turn, and the file of all figures."""

    rounds: Rounds = 3
    rows: Rows = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need(1, "rounds")

    def write(self, rows: object) -> None:
        """Write what was measured to the file of --rows, if there is to be one.  Raises OSError."""
        if self.rows is not None:
            files.replace(self.rows, msgspec.json.format(msgspec.json.encode(rows), indent=1))


@dataclass(frozen=True, kw_only=True)
class LinksOptions(BenchOptions):
    """The switches of a fabric, and their links."""

    switch: Switch = "softswitch"
    rate: Rate = "1gbit"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_one("switch", get_args(Engine))
        try:
            for rate in self.rate.split(","):
                if rate != UNSHAPED:
                    bits_per_second(rate)
        except FabricError as error:
            raise ValueError(f"--rate {self.rate}: {error}, or {UNSHAPED}") from error

    @property
    def engine(self) -> Engine:
        """The engine of the switches."""
        return "bmv2" if self.switch == "bmv2" else "softswitch"

    @property
    def link_rate(self) -> str | None:
        """Rate of every link in tc's units; None: not shaped."""
        return None if self.rate == UNSHAPED else self.rate


@dataclass(frozen=True, kw_only=True)
class HostsOptions(LinksOptions):
    """A fabric with a rank on each host."""

    PLANES: ClassVar[tuple[int, ...]] = (1,)
    """Numbers of planes that there may be."""
    ranks: Ranks = 0
    topo: Topo = "leafspine,2,2,4"
    ranks_per_host: int = 1

    def __post_init__(self) -> None:
        """Take the number of ranks and the fabric's text from each other."""
        super().__post_init__()
        if self.ranks > 0 and self.topo == (usual := type(self).topo):
            self._set(topo=f"{usual[:usual.rindex(',')]},{self.ranks // self.ranks_per_host}")
        try:
            planes = self.planes()
        except FabricError as error:
            raise ValueError(f"--topo {self.topo}: {error}") from error
        if len(planes) not in self.PLANES:
            self.refuse("topo", "a fabric of one plane" if self.PLANES == (1,) else
                        f"{' or '.join(map(str, self.PLANES))} planes")
        ranks = len(planes[0].hosts) * self.ranks_per_host
        if self.ranks not in (0, ranks):
            each = f", times {self.ranks_per_host}" if self.ranks_per_host > 1 else ""
            self.refuse("ranks", f"as many as {self.topo} has hosts{each}: {ranks}")
        self._set(ranks=ranks)
        self.need(2, "ranks")

    def planes(self, **settings: Any) -> list[Fabric]:
        """The fabric of each plane.  Raises FabricError."""
        return parse_planes(self.topo, rate=self.link_rate, engine=self.engine, **settings)

    def fabric(self, **settings: Any) -> Fabric:
        """The fabric of the only plane.  Raises FabricError."""
        return self.planes(**settings)[0]

    @property
    def in_words(self) -> str:
        """The fabric, its switches and its links."""
        rates = ", ".join(rate_in_words(rate) for rate in self.rate.split(",")) if self.link_rate else ""
        return f"{self.topo}, {self.switch}; links {f'of {rates}' if rates else 'not shaped'}"


@dataclass(frozen=True, kw_only=True)
class PacketsOptions(HostsOptions):
    """A fabric, and what its links do to packets."""

    path_mtu: PathMtu = PATH_MTU
    seed: Seed = 0

    def __post_init__(self) -> None:
        self.need_one("path_mtu", roce.PATH_MTUS)
        super().__post_init__()

    def planes(self, **settings: Any) -> list[Fabric]:
        return super().planes(**{"path_mtu": self.path_mtu, "seed": self.seed, **settings})


@dataclass(frozen=True, kw_only=True)
class LossyOptions(PacketsOptions):
    """A fabric whose links lose packets."""

    loss: Loss = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            self.refuse("loss", "0 or more, and less than 1")
        super().__post_init__()

    def planes(self, **settings: Any) -> list[Fabric]:
        return super().planes(**{"loss": self.loss, **settings})
