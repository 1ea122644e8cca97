# SPDX-License-Identifier: Apache-2.0
"""The bytes that narrow lanes save on host links, and their cost in the quality of a training.

    python -m netfold.bench.scripts.lanes [--steps 120] [--path-mtu 1024]

The demo's training runs in a sandbox on a leaf-spine fabric of P4 switches: with lanes of 32, 16 and 8 bits, and with
8 bits and error feedback.  Bytes are those of Ethernet frames on the hosts' links, as the switches count them, for each
byte of gradient; ``least`` is the sum of payloads and headers without a retransmission.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from netfold.demo import train
from netfold.fabric.generate import leafspine
from netfold.topo.network import sandbox
from netfold.wire import roce

RANKS = 4
WAYS = ((32, False), (16, False), (8, False), (8, True))
"""Lane bits, and whether error feedback is on."""


def least(lane_bits: int, path_mtu: int) -> float:
    """Bytes of frames for each byte of a long float32 tensor, in one direction of a host's link."""
    frame = roce.ETHERNET_BYTES + roce.ip_packet_bytes(roce.Opcode.WRITE_MIDDLE, path_mtu)
    scales = roce.LANE_BYTES / (roce.BLOCK * 4)
    return (lane_bits / 32 + scales) * frame / path_mtu


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--path-mtu", type=int, default=roce.PATH_MTU, choices=roce.PATH_MTUS)
    options = parser.parse_args()
    sandbox.enter()
    from netfold.topo.network.net import Network

    folder = Path(tempfile.mkdtemp(prefix="lanes-", dir=sandbox.rundir()))
    train.save_digits(folder / "digits.npz")
    spec = train.TrainingSpec(data=str(folder / "digits.npz"), steps=options.steps)
    fabric = leafspine(2, 1, RANKS, rundir=sandbox.rundir(), path_mtu=options.path_mtu)
    _, alone_loss, alone_accuracy = train.train_single_process(spec)
    print(f"{options.steps} steps, {RANKS} ranks, path MTU {options.path_mtu}\n"
          f"{'lanes':>16} {'loss':>9} {'accuracy':>9} {'link bytes':>11} {'least':>7} {'sent again':>11}\n"
          f"{'one process':>16} {alone_loss:9.5f} {alone_accuracy:9.2%}", flush=True)
    hosts = {host.name for host in fabric.hosts}
    with Network(fabric, logs=folder) as network:
        before = 0
        for number, (bits, feedback) in enumerate(WAYS):
            own = msgspec.structs.replace(spec, lane_bits=bits, feedback=feedback)
            command = [sys.executable, "-m", "netfold.demo.train", msgspec.json.encode(own).decode()]
            lines = network.launch(command, job=f"lanes{number}").wait(within=200)
            results = [msgspec.json.decode(rank[-1], type=train.TrainingResult) for rank in lines]
            links = [link for link in network.status().links if link.b.partition(":")[0] in hosts]
            total = sum(link.a_to_b.bytes + link.b_to_a.bytes for link in links)
            reduced = sum(result.gradient_bytes for result in results) * options.steps
            name = f"{bits} bits" + (", feedback" if feedback else "")
            share, again = (total - before) / 2 / reduced, sum(result.retransmissions for result in results)
            print(f"{name:>16} {results[0].loss:9.5f} {results[0].accuracy:9.2%} {share:11.4f} "
                  f"{least(bits, options.path_mtu):7.4f} {again:11d}", flush=True)
            before = total


if __name__ == "__main__":
    main()
