# SPDX-License-Identifier: Apache-2.0
"""Switch processes and P4Runtime servers for tests, running the hand-written program native/probe.c.

A frame of the probe contains what shall happen to it (native/probe.c). With op 0 (FORWARD) the bytes are
also an Ethernet frame to 00:00:PP:PP:... that leaves through port PPPP.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from finsy.proto import p4i, p4r

from softswitch.engine.local import LocalEngine
from softswitch.engine.program_info import MatchKind, ProgramInfo, Unit
from softswitch.p4runtime.program import Built, build_executable

PROBE = Path(__file__).parent / "native" / "probe.c"
THREADS = ("-fsanitize=thread",)
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")

_MATCH = {
    MatchKind.EXACT: p4i.MatchField.EXACT,
    MatchKind.LPM: p4i.MatchField.LPM,
    MatchKind.TERNARY: p4i.MatchField.TERNARY,
    MatchKind.RANGE: p4i.MatchField.RANGE,
    MatchKind.OPTIONAL: p4i.MatchField.OPTIONAL,
}
_UNIT = {
    Unit.PACKETS: p4i.CounterSpec.PACKETS,
    Unit.BYTES: p4i.CounterSpec.BYTES,
    Unit.PACKETS_AND_BYTES: p4i.CounterSpec.BOTH,
}


def p4info_of(info: ProgramInfo) -> p4i.P4Info:
    """A p4info for a program that has none, from the description by the engine."""
    p4info = p4i.P4Info()
    p4info.pkg_info.arch = "v1model"
    actions = {}
    for table in info.tables:
        t = p4info.tables.add(size=table.size)
        t.preamble.id, t.preamble.name, t.preamble.alias = table.id, table.name, table.name.split(".")[-1]
        for i, key in enumerate(table.keys):
            t.match_fields.add(id=i + 1, name=key.name, bitwidth=key.bits, match_type=_MATCH[key.match])
        for action in table.actions:
            t.action_refs.add(id=action.id)
            actions[action.id] = action
        if table.profile >= 0:
            t.implementation_id = info.profiles[table.profile].id
        for direct, all_of in ((table.direct_counter, info.counters), (table.direct_meter, info.meters)):
            if direct >= 0:
                t.direct_resource_ids.append(all_of[direct].id)
        if table.idle_timeout:
            t.idle_timeout_behavior = p4i.Table.NOTIFY_CONTROL
    for action in actions.values():
        a = p4info.actions.add()
        a.preamble.id, a.preamble.name, a.preamble.alias = action.id, action.name, action.name.split(".")[-1]
        for i, bits in enumerate(action.param_bits):
            a.params.add(id=i + 1, name=f"p{i + 1}", bitwidth=bits)
    for profile in info.profiles:
        p = p4info.action_profiles.add(
            size=profile.size, with_selector=profile.selector, max_group_size=profile.max_group_size
        )
        p.preamble.id, p.preamble.name, p.preamble.alias = profile.id, profile.name, profile.name.split(".")[-1]
        p.table_ids.extend(t.id for t in info.tables if t.profile == profile.index)
    for counter in info.counters:
        c: Any = p4info.direct_counters.add() if counter.table >= 0 else p4info.counters.add(size=counter.size)
        c.preamble.id, c.preamble.name, c.preamble.alias = counter.id, counter.name, counter.name.split(".")[-1]
        c.spec.unit = _UNIT[counter.unit]
        if counter.table >= 0:
            c.direct_table_id = info.tables[counter.table].id
    for meter in info.meters:
        m: Any = p4info.direct_meters.add() if meter.table >= 0 else p4info.meters.add(size=meter.size)
        m.preamble.id, m.preamble.name, m.preamble.alias = meter.id, meter.name, meter.name.split(".")[-1]
        m.spec.unit = p4i.MeterSpec.PACKETS if meter.unit is Unit.PACKETS else p4i.MeterSpec.BYTES
        if meter.table >= 0:
            m.direct_table_id = info.tables[meter.table].id
    for register in info.registers:
        r = p4info.registers.add(size=register.size)
        r.preamble.id, r.preamble.name, r.preamble.alias = register.id, register.name, register.name.split(".")[-1]
        r.type_spec.bitstring.bit.bitwidth = register.bits
    for digest in info.digests:
        d = p4info.digests.add()
        d.preamble.id, d.preamble.name, d.preamble.alias = digest.id, digest.name, digest.name
        d.type_spec.struct.name = digest.name
        for i, bits in enumerate(digest.field_bits):
            member = p4info.type_info.structs[digest.name].members.add(name=f"f{i}")
            member.type_spec.bitstring.bit.bitwidth = bits
    for value_set in info.value_sets:
        v = p4info.value_sets.add(size=value_set.size)
        v.preamble.id, v.preamble.name, v.preamble.alias = value_set.id, value_set.name, value_set.name.split(".")[-1]
        for i, key in enumerate(value_set.keys):
            v.match.add(id=i + 1, name=key.name, bitwidth=key.bits, match_type=_MATCH[key.match])
    return p4info


@functools.cache
def probe_p4info() -> p4i.P4Info:
    """The p4info of the probe."""
    with LocalEngine.open(PROBE) as engine:
        return p4info_of(engine.info)


@functools.cache
def probe_executable(*, flags: tuple[str, ...] = ()) -> Path:
    """The probe as an executable, with the runtime and packet I/O; `flags`: SANITIZE or THREADS."""
    return build_executable(PROBE, flags=flags)


def probe_builder(device_config: bytes) -> Built:
    """A Builder that returns the probe, whatever is pushed."""
    return Built(probe_executable(), probe_p4info())


def probe_config() -> p4r.ForwardingPipelineConfig:
    """The pipeline configuration that a controller pushes for the probe."""
    return p4r.ForwardingPipelineConfig(p4info=probe_p4info(), p4_device_config=b"probe")
