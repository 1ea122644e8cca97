# SPDX-License-Identifier: Apache-2.0
"""The options of `netfold bench train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, get_args

import typer

from netfold.bench.options.shared import LossyOptions, Out, Rate, RoundsOptions, Timeout
from netfold.bench.ranks.train_command import Way
from netfold.wire.jobs import LANE_BITS

ON_FABRIC: Final = "@fabric"
PLAIN: Final = ("gloo", "fsdp-gloo", "fsdp2-gloo", "hsdp-gloo")
"""Backends that NetFold has no part in."""
NARROWS: Final = ("netfold", "hook", "priority", "priority-arrival")
"""Backends that are measured with each width of lanes."""
MODELS: Final[Mapping[str, tuple[int, int, str]]] = {"cnn": (1024, 8, "images"), "transformer": (256, 2, "tokens")}
"""Models: the width and the samples of a rank where the options say nothing, and what is counted a second."""
WAYS: Final = (*get_args(Way), *(name + ON_FABRIC for name in PLAIN))
"""The backends that options name."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LossyOptions, RoundsOptions):
    """Training steps over several backends and links of one rate, beside gloo's and a single process's losses.

    Everything runs in a sandbox on this machine, on generated data. Exit status 1 if losses are not those of a
    single process, within the bound of the lanes.
    """

    PLANES: ClassVar = (1, 2)
    rate: Rate = "100mbit"
    model: Annotated[str, typer.Option(help="cnn, or transformer.")] = "cnn"
    backends: Annotated[
        str,
        typer.Option(help="By commas: netfold, hook, fsdp, fsdp2, fsdp2-prefetch, fsdp2-together, hsdp, priority, "
                     "priority-arrival; gloo, fsdp-gloo, fsdp2-gloo and hsdp-gloo over a plain kernel bridge, with "
                     "@fabric behind them over the fabric."),
    ] = "gloo,netfold,hook,priority"
    beside: Annotated[str, typer.Option(help="The backend that ratios are to; default: gloo, or gloo@fabric.")] = ""
    lane_bits: Annotated[str, typer.Option(help="Lanes of netfold, hook and priority.")] = "32"
    width: Annotated[int, typer.Option(help="Width; default: 1024 of the cnn, 256 of the transformer.")] = 0
    layers: Annotated[int, typer.Option(help="Layers of the model that are so wide.")] = 2
    layer_seconds: Annotated[float, typer.Option(help="Sleep of each layer forward, and again backward, as if an "
                                                 "accelerator computed it.")] = 0.0
    batch: Annotated[int, typer.Option(help="Samples of a rank in a step; default: 8 images, or 2 texts.")] = 0
    bucket_mb: Annotated[float, typer.Option(help="DistributedDataParallel's bucket_cap_mb.")] = 25.0
    steps: Annotated[int, typer.Option(help="Timed steps of a round.")] = 10
    out: Out = None
    timeout: Timeout = 60.0
    record: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Record each backend's timed steps of the last "
                                                "round here, as BACKEND-BITS.rankN.json, for `netfold what-if`.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if "," in self.rate:
            self.refuse("rate", "one rate of all links, also of planes")
        self.need_one("model", MODELS)
        usual_width, usual_batch, _ = MODELS[self.model]
        self.need(0, "width", "batch", "layer_seconds")
        self.need(1, "layers", "steps")
        self.need_positive("bucket_mb", "timeout")
        if self.model == "transformer" and self.width % 8:
            self.refuse("width", "a multiple of 8, for the transformer's heads")
        self._set(width=self.width or usual_width, batch=self.batch or usual_batch)
        self.names("lane_bits", [str(bits) for bits in LANE_BITS])
        for name in self.names("backends", WAYS):
            self._check_backend(name)
        if self.beside and (self.beside, 32) not in self.ways:
            whole = [name for name, bits in self.ways if bits == 32]
            self.refuse("beside", f"one of --backends, in 32-bit lanes: {', '.join(whole) or 'none is'}")

    def _check_backend(self, name: str) -> None:
        """Check that a backend can run with the other options."""
        if self.loss and name in PLAIN:
            self.refuse("loss", f"0, as the plain bridge that {name} runs on loses nothing; or {name}{ON_FABRIC}")
        if self.rails > 1 and name in [way + ON_FABRIC for way in PLAIN if way != "gloo"]:
            self.refuse("topo", f"one plane: {name} would use one of them; or {name.removesuffix(ON_FABRIC)}")
        if name.startswith("hsdp") and self.ranks % 2:
            self.refuse("ranks", f"an even number: {name} has two replicas")

    @property
    def ways(self) -> tuple[tuple[str, int], ...]:
        """The backends, each with its lanes."""
        widths = [int(bits) for bits in self.names("lane_bits", [str(bits) for bits in LANE_BITS])]
        return tuple((name, bits) for name in self.names("backends", WAYS)
                     for bits in (widths if name in NARROWS else (32,)))

    @property
    def rails(self) -> int:
        """Planes of the fabric."""
        return len(self.planes())
