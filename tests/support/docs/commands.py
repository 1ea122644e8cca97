# SPDX-License-Identifier: Apache-2.0
"""Which of the documentation's command lines tests run, how, and which they do not run, and why not.

A command line stands here as `support.docs.pages.commands` reads it from a page.  A name alone ("netfold drain" in a
sentence) is no line to type, and need not be here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Run:
    """How a command line is run.

    instead  the line with the reader's part filled in; empty: as it is
    says     what stands in its output
    status   its exit status
    """

    instead: str = ""
    says: str = ""
    status: int = 0


_PACKET: Final = "02000000000102000000000208004500001400010000400663e00a0001020a000202"

OFFLINE: Final[dict[str, Run]] = {
    "netfold fabric leafspine,2,1,2": Run(says='name = "leafspine-2-1-2"'),
    "netfold fabric leafspine,2,2,8": Run(says='name = "leafspine-2-2-8"'),
    "netfold fabric leafspine,2,2,8 -o lab.toml": Run(),
    "netfold fabric leafspine,2,2,8 --export containerlab -o lab": Run("netfold fabric leafspine,2,2,8 --export "
                                                                         "containerlab -o clab"),
    "netfold fabric leafspine,2,2,8 --machines hosts.txt": Run(says="m2"),
    "netfold fabric leafspine,2,2,8 --machines hosts.txt -o lab": Run(),
    "netfold plan lab.toml --entries": Run(says="spine1"),
    "netfold up lab.toml": Run("netfold up absent.toml", "absent.toml", 2),
    "netfold flight FOLDER": Run("netfold flight flights", "PeerLost"),
    "netfold timeline merge FILE...": Run("netfold timeline merge trace.loop.rank0.json trace.loop.rank1.json "
                                          "-o merged.json"),
    "netfold timeline merge trace.*.json -o all.json": Run("netfold timeline merge trace.loop.rank0.json "
                                                           "trace.loop.rank1.json -o all.json"),
    "netfold pcap --dissector": Run(says=".lua"),
    "netfold fabric mesh,4,4,hosts=2 -o lab.toml": Run("netfold fabric mesh,4,4,hosts=2 -o mesh.toml"),
    "netfold plan --topo threetier,2,2,2,4,8,uplinks=1:2,cores=1:1:1:2": Run(says="tree"),
    "netfold sim fabric torus,4,4": Run("netfold sim fabric torus,2,3"),
    "netfold sim goal FILE --write ring": Run("netfold sim goal ring.goal --write ring --ranks 8 --size 64",
                                              says="112 messages"),
    "netfold sim goal FILE": Run("netfold sim goal two.goal --schemes netfold", says="2 ranks"),
    "netfold sim goal ring.goal": Run("netfold sim goal two.goal --schemes ecmp", says="2 ranks"),
    "netfold sim fabric TOPO": Run("netfold sim fabric mesh,2,2"),
    "netfold what-if training.json --fabric lab.toml --rate 100gbit": Run(
        "netfold what-if steps.json --fabric lab.toml --rate 100gbit", says="innet-8"),
    "netfold what-if FOLDER --topo leafspine,4,4,32 --rate 100gbit --ranks-per-host 2 --out what-if": Run(
        "netfold what-if steps.json --topo leafspine,2,2,2 --rate 1gbit --ranks-per-host 2 --ways gloo,innet",
        says="x gloo"),
    "netfold shell SWITCH lab.toml": Run("netfold shell leaf9 lab.toml", "leaf9", 2),
    "netfold status --controller ADDRESS": Run("netfold status --controller unix:absent.sock",
    "no controller answers", 1),
    "softswitch compile --json": Run("softswitch compile prog.p4 --json prog.json"),
    "softswitch compile prog.p4 --json FILE": Run("softswitch compile prog.p4 --json other.json"),
    "softswitch compile prog.p4 --p4info prog.p4info.txtpb --preprocessed pushed.p4": Run(),
    "softswitch compile prog.p4 --p4info prog.p4info.txtpb --preprocessed pushed.p4 --json prog.json": Run(),
    "softswitch examples DIR": Run("softswitch examples given"),
    f"softswitch explain examples/router.p4 --packet {_PACKET}":
        Run(says="no entry matches -> default RouterIngress.drop"),
    "softswitch explain l3.p4 --packet 0200000000020200000000010800450000... --port 1 --entries s1-runtime.json":
        Run(f"softswitch explain l3.p4 --packet {_PACKET} --port 1 --entries s1-runtime.json", "I.forward"),
    "softswitch explain prog.p4 --packet HEX --entries s1-runtime.json":
        Run(f"softswitch explain l3.p4 --packet {_PACKET} --entries s1-runtime.json", "I.forward"),
    "softswitch stf examples/firewall.p4 examples/firewall.stf": Run(says="passed; 4 frames in, 2 out"),
    "softswitch stf prog.p4 test.stf": Run(says="passed"),
    "softswitch tools DIR": Run("softswitch tools stand-ins", "export PATH="),
}
"""Run in a folder with the files that they name; nothing else runs."""

FABRIC: Final[dict[str, Run]] = {
    "netfold status lab.toml --json": Run(says='"jobs"'),
    "netfold status lab.toml": Run(says="steady"),
    "netfold status --json": Run(says='"jobs"'),
    "netfold status FILE": Run("netfold status lab.toml", "steady"),
    "netfold top lab.toml": Run("netfold top lab.toml --once", "steady"),
    "netfold links lab.toml": Run(says="leaf1"),
    "netfold up lab.toml --dry-run": Run(),
    "netfold diff lab.toml": Run(),
    "netfold apply lab.toml": Run(),
    "netfold slots leaf1": Run(),
    "netfold slots SWITCH JOB": Run("netfold slots leaf1 steady"),
    "netfold stall JOB": Run("netfold stall steady"),
    "netfold paths show --pins modes, packets without a pin, uplinks down, drained, suspect": Run("netfold paths show "
                                                                                                  "--pins", "pinned"),
    "netfold paths mode spray leaf2 leaf3 pinned (default), ecmp, spray": Run("netfold paths mode spray leaf2",
    "spray"),
    "netfold paths planner equal_split how flows are cut, until a restart: fewest_pieces or equal_split":
        Run("netfold paths planner equal_split", "equal_split"),
    "netfold paths planner equal_split": Run("netfold paths planner fewest_pieces", "fewest_pieces"),
    "netfold paths set leaf1 leaf3 61442 5 this port of the plan by another uplink":
        Run("netfold paths set leaf1 leaf2 61441 3"),
    "netfold drain spine1": Run(says="spine1 is drained"),
    "netfold undrain spine1": Run(says="spine1 is in use again"),
    "netfold drain SWITCH": Run("netfold drain leaf1-spine1", "netfold links", 2),
    "netfold fault loss leaf1-spine1 --share 0.02 --for 5s --seed 3":
        Run("netfold fault loss leaf1-spine1 --share 0.02 --for 60s --seed 3", "ends by itself after 60 s"),
    "netfold fault cut h3 --for 2s": Run(says="ends by itself after 2 s"),
    "netfold fault kill spine1 --for 3s": Run("netfold fault stop spine1 --for 1s", "spine1"),
    "netfold fault list": Run(says="leaf1"),
    "netfold fault end all": Run(),
    "netfold pcap leaf1:3 --for 10s": Run("netfold pcap leaf1:3 --for 300ms -w ten.pcapng"),
    "netfold pcap all -w run.pcapng --ring 100MB": Run("netfold pcap all -w run.pcapng --ring 100MB --for 300ms"),
    "netfold pcap leaf1-spine1 -w -": Run("netfold pcap leaf1-spine1 -w link.pcapng --for 300ms"),
    "netfold pcap leaf1:3 -w FILE": Run("netfold pcap leaf1:3 -w file.pcapng --for 300ms"),
    "netfold fault kill spine1 --for 5s": Run("netfold fault kill spine1 --for 1s", "spine1 is killed"),
    "netfold drop JOB": Run("netfold drop steady"),
}
"""Run, in this order, beside a fabric of two leaves and two spines whose four ranks sum all the time."""

NOT_RUN: Final[dict[str, tuple[str, ...]]] = {
    "not whole: the page shows which command, and leaves the rest to the reader": (
        "netfold bench NAME", "netfold bench train ...", "netfold run ...", "netfold fault ...",
        "netfold paths show|mode|planner|set", "netfold up --probe --misses", "netfold up FABRIC.toml",
        "netfold up FILE",
        "netfold run --rails ... -- python train.py", "softswitch --no-p4 -i 1@eth1 ...",
        "softswitch run prog.p4 --thrift-port 9090 ...", "softswitch run prog.p4 ... --trace -", "netfold run --paths",
        "netfold run --timeout", "netfold run --topo", "netfold run --fabric",
        "netfold up --topo", "netfold up --standby",
        "softswitch --primary",
        "softswitch run --page", "softswitch run --trace"),
    "a benchmark of minutes, whose parts tests/bench runs": (
        "netfold bench allreduce --algorithms auto,innet,ring,... -b 4K -e 64M",
        "netfold bench allreduce --ranks 8 -b 16M -e 16M -n 4 --rounds 9 --algorithms roce,ring",
        "netfold bench allreduce --ranks 8 -b 1M -e 64M",
        "netfold bench allreduce --ranks 8 -b 1M -e 64M -f 4 -n 3 --algos innet,ring,ring@bridge,gloo --rows rows.json",
        "netfold bench allreduce --ranks 4 -b 1M -e 64M -f 4 -n 10 --rate none --algos innet,gloo",
        "netfold bench collectives --ranks 8 --sizes 4K,4M --collectives barrier,broadcast,together --rows rows.json",
        "netfold bench growth --out FOLDER", "netfold bench loss --credits 2x170K",
        "netfold bench allreduce --ranks-per-host 2",
        "netfold bench allreduce --ranks 8 --ranks-per-host 2 --rate 200mbit -b 8M -e 8M --algorithms "
        "innet,hierarchical,ring",
        "netfold bench allreduce --ranks 32 --ranks-per-host 4 -b 16M -e 16M --algorithms innet",
        "netfold bench allreduce --topo mesh,2,4 --ranks 8 --algorithms tidalmesh,ring",
        "netfold bench allreduce --topo mesh,2,4 --ranks 8 --rate 10mbit -b 256K -e 4M -f 4 -n 1 --algorithms "
        "tidalmesh,mesh2d,ring",
        "netfold bench loss --rate 1gbit --rounds 1 -n 12 --losses 0.01,0.05",
        "netfold bench collectives --collectives broadcast",
        "netfold bench collectives --collectives broadcast --out papers/collectives",
        "netfold bench collectives --collectives broadcast,step",
        "netfold bench collectives --collectives broadcast --sizes 1K,4K,16K,64K,256K,1M --rate 200mbit -n 10 --out "
        "papers/collectives",
        "netfold bench collectives --collectives step",
        "netfold bench collectives --collectives step --sizes 4M --ranks 4 --rate 200mbit --out papers/collectives",
        "netfold bench simulator --cases folds",
        "netfold bench paths --planner equal_split",
        "netfold bench paths --modes pinned --collectives all_to_all --fail-link 0.15 --silent",
        "netfold bench rails --out FOLDER",
        "netfold bench rails --rails innet@a+tcp@b --rate 20mbit --algorithm ring -b 64K -e 1M --train 0 "
        "--series 0 --cuts  --cut-bytes 1M --stall 1 --mptcp --out papers/nezha/multipath-tcp",
        "netfold bench rails --rails innet@a+tcp@b --algorithm ring -e 4M --cut-bytes 8M --out papers/nezha",
        "netfold bench rails --rails tcp@a+tcp@b --algorithm ring -e 4M --cut-bytes 8M --out build/tcp-tcp",
        "netfold bench soak --rounds 1000000 --seconds 36000 --seed 1 --rows soak.json --logs failed",
        "netfold bench train --backends gloo,fsdp2", "netfold bench train --backends hsdp-gloo,hsdp",
        "netfold bench train --model transformer --backends gloo,fsdp-gloo,fsdp,fsdp2-gloo,fsdp2,fsdp2-together "
        "--beside fsdp2-gloo",
        "netfold bench train --layers 6 --width 512 --backends fsdp2,fsdp2-gloo,fsdp2-prefetch,fsdp2-together --beside "
        "fsdp2",
        "netfold bench train --layers 8 --width 512 --layer-seconds 0.03 --rate 200mbit --bucket-mb 1.1 --batch 2 "
        "--backends hook,priority-arrival,priority --beside hook",
        "netfold bench train --model cnn --backends gloo,netfold --lane-bits 32,16",
        "netfold bench train --model cnn --ranks 4 --backends gloo,netfold --lane-bits 32,16 --rows rows.json "
        "--out train"),
    "a paper's figures, minutes; their short forms are in tests/sim": (
        "netfold sim ethereal --schemes ethereal,netfold,spray,spray-rr,spray-ideal,reps --seeds 1,2,3 --out "
        "papers/ethereal",
        "netfold sim ethereal --out build/ethereal", "netfold sim mesh --out papers/collectives",
        "netfold sim ethereal --fabrics unequal-spines-64,unequal-leaves-64 --models none --sizes 1,16 --states "
        "healthy --out papers/ethereal/unequal", "netfold sim netreduce --only beside --out papers/netreduce",
        "netfold sim netreduce --only training --out papers/netreduce",
        "netfold sim netreduce --out papers/netreduce", "netfold sim smp --out papers/collectives"),
    "starts a fabric of its own: tests/e2e/test_demo.py, test_fabric.py, test_rails.py and test_fault_commands.py do": (
        "netfold demo", "netfold demo --lane-bits 8", "netfold demo --page", "netfold run -- python train.py",
        "netfold run --fabric lab.toml -- python train.py",
        "netfold run --topo dual,leafspine,2,2,8 --rails innet@a+tcp@b -- python train.py",
        "netfold run --topo dual,leafspine,2,2,8 --rate 150mbit,75mbit --rails innet@a+tcp@b -- python train.py",
        "netfold run --topo leafspine,2,2,8 --metrics 127.0.0.1:9464 -- python train.py",
        "netfold run -np 4 --topo leafspine,2,2,4 -- ./allreduce",
        "netfold run -np 8 --topo leafspine,2,2,8 -- python train.py", "netfold up --topo leafspine,2,2,8",
        "netfold run --topo mesh,2,3,rows=1gbit,columns=250mbit -- python train.py",
        "netfold up --topo leafspine,2,2,8,uplinks=2:1 --rate 1gbit",
        "netfold up --topo leafspine,2,3,8,uplinks=1gbit:1gbit:250mbit",
        "netfold up --topo leafspine,2,2,8 --metrics 127.0.0.1:9464", "netfold up --topo leafspine,4,4,16",
        "netfold up --topo triple,leafspine,1,0,4", "netfold up lab.toml --insecure",
        "netfold up lab.toml --metrics 127.0.0.1:9464", "netfold up lab.toml --standby"),
    "several machines: tests/e2e/test_over_machines.py makes some of namespaces": (
        "netfold run --fabric FILE -- python train.py",
        "netfold run --topo leafspine,2,2,8 --machines hosts.txt -- python train.py",
        "netfold up --topo leafspine,2,2,8 --machines hosts.txt", "netfold fault stop controller", "netfold pcap all"),
    "virtual machines, whose boot takes a minute: tests/e2e/test_rxe.py": ("netfold demo --hosts rxe",),
    "needs p4c: tests/controller/switch compiles where it is there": ("netfold compile --switch bmv2 -o DIR",),
    "a switch in the foreground, on interfaces: softswitch/tests/cli, trace and tools start it": (
        "softswitch --no-p4 -i 1@eth1 --grpc-server-addr 0.0.0.0:9559 --grpc-server-ssl",
        "softswitch --no-p4 -i 1@eth1 -i 2@eth2 --grpc-server-addr 127.0.0.1:9559 --cpu-port 510",
        "softswitch prog.p4 -i 1@eth1 -i 2@eth2",
        "softswitch prog.p4 -i 1@eth1 -i 2@eth2 --grpc-server-addr 127.0.0.1:9559 --cpu-port 510 --device-id 1",
        "softswitch run l3.p4 -i 1@eth1 -i 2@eth2 --page 127.0.0.1:8080",
        "softswitch run prog.p4 -i 1@eth1 --page 127.0.0.1:8080",
        "softswitch run prog.p4 -i 1@eth1 -i 2@eth2 --trace -",
        "softswitch run prog.p4 -i 1@eth1 -i 2@eth2 --trace packets.trace"),
    "reads what a running switch has recorded: softswitch/tests/trace/test_trace.py": (
        "softswitch trace packets.trace", "softswitch trace packets.trace --format bmv2 --packet 3"),
}
"""Why not -> the lines."""
