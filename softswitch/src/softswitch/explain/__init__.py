# SPDX-License-Identifier: Apache-2.0
"""Shows the processing of a packet by a program, without interfaces, processes or a control plane: `softswitch
explain`.

    with TracedEngine.compile(Path("l3.p4")) as engine:
        entries.load(engine, program, Path("s1-runtime.json"))
        for frame in packets.read("0800..."):
            engine.receive_traced(1, frame)

    packets        frames from hexadecimal digits and pcap files
    entries        the control plane's state from a file: a packet test (STF), or
      runtime_json   the format of p4lang's tutorials, or
      commands       commands of simple_switch_CLI
"""
