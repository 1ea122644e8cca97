# SPDX-License-Identifier: Apache-2.0
"""What a program does with a packet, without interfaces, processes or a control plane: `softswitch explain`.

    with TracedEngine.compile(Path("l3.p4")) as engine:
        entries.load(engine, program, Path("s1-runtime.json"))
        for frame in packets.read("0800..."):
            engine.receive_traced(1, frame)

    packets        frames from hexadecimal digits and pcap files
    entries        the control plane's state from a file: a packet test (STF), or
      runtime_json   what p4lang's tutorials have, or
      commands       commands of simple_switch_CLI
"""
