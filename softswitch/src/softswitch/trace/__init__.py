# SPDX-License-Identifier: Apache-2.0
"""The packet trace: for every frame a tree of what happened to it, and why.

    program   what the numbers in a program's records mean          steps    the tree: PacketTrace and Step
    records   records of the switch (runtime/records.h) -> the tree   reasons  why a packet was dropped
    text  as_json  bmv2                                            the tree as text, JSON and in BMv2's words
    engine    a traced switch in this process                       recording  files of records
"""

from softswitch.trace.as_json import to_json
from softswitch.trace.engine import TracedEngine
from softswitch.trace.program import Place, TracedProgram, TraceError
from softswitch.trace.records import decode
from softswitch.trace.steps import PacketTrace, Step
from softswitch.trace.text import to_text

__all__ = ["PacketTrace", "Place", "Step", "TraceError", "TracedEngine", "TracedProgram", "decode", "to_json",
           "to_text"]
