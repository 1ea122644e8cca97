# SPDX-License-Identifier: Apache-2.0
"""What a program does with a packet, without interfaces, processes or a control plane: `softswitch explain`.

    with TracedEngine.compile(Path("l3.p4")) as engine:
        entries.load(engine, Path("s1-runtime.json"), program)
        for port, frame in packets.read("0800...", 1):
            engine.receive_traced(port, frame)

    packets   frames from hexadecimal digits, pcap files and packet tests
    entries   the control plane's state from a file: a packet test (STF), commands of simple_switch_CLI, or the
              runtime.json of p4lang's tutorials
"""
