# SPDX-License-Identifier: Apache-2.0
"""Messages for counter cells and meter configurations (P4Runtime 9.3, 9.4)."""

from __future__ import annotations

from finsy.proto import p4r

from softswitch.engine.entities import Count, MeterConfig
from softswitch.engine.errors import InvalidArgument
from softswitch.engine.program_info import MeteringInfo, Unit

_MOST = (1 << 63) - 1


def decode_meter(message: p4r.MeterConfig, what: str) -> MeterConfig:
    """Decodes a configuration. Raises InvalidArgument unless rates and bursts are positive and peak >= committed."""
    if message.eburst:
        raise InvalidArgument(f"{what}: eburst belongs to single-rate meters; this one has two rates")
    rates = (message.cir, message.cburst, message.pir, message.pburst)
    if min(rates) < 0:
        raise InvalidArgument(f"{what}: rates and bursts must not be negative, got {rates}")
    if message.pir < message.cir:
        raise InvalidArgument(f"{what}: peak rate {message.pir} is below committed rate {message.cir}")
    return MeterConfig(*rates)


def encode_meter(config: MeterConfig, message: p4r.MeterConfig) -> None:
    """Fills the message with a configuration; rates below one unit a second count as one."""
    rates = (config.cir, config.pir)
    message.cir, message.pir = [-(-rate // 1_000_000) for rate in rates] if config.slow else rates
    message.cburst, message.pburst = config.cburst, config.pburst


def encode_count(count: Count, message: p4r.CounterData) -> None:
    """Fills the message with counts, also where both are 0. Over Thrift a cell may get all of its 64 bits; here 63 are
    the most."""
    message.packet_count, message.byte_count = min(count.packets, _MOST), min(count.bytes, _MOST)
    message.SetInParent()


def counted(counter: MeteringInfo, written: Count, now: Count) -> Count:
    """The cell after a write: a count that is not in the counter's unit stays as it is, as on BMv2."""
    return Count(now.packets if counter.unit is Unit.BYTES else written.packets,
                 now.bytes if counter.unit is Unit.PACKETS else written.bytes)


def decode_count(message: p4r.CounterData, what: str) -> Count:
    """Decodes packets and bytes.  Raises InvalidArgument for negative counts; ``what`` names the counter."""
    if message.packet_count < 0 or message.byte_count < 0:
        raise InvalidArgument(f"{what}: expected counts of 0 or more, got {message.packet_count} packets and "
                              f"{message.byte_count} bytes")
    return Count(message.packet_count, message.byte_count)
