# SPDX-License-Identifier: Apache-2.0
"""A host that belongs to no job and floods an address with small UDP datagrams, so many in so many seconds at most.

    python flood.py ADDRESS SECONDS PACKETS

Prints {"sent", "seconds", "processor"}: datagrams that the kernel took, seconds in all, and seconds of a processor.
"""

import json
import os
import socket
import sys
import time

PORT = 4791
"""RoCE's, as link probes have."""
BURST = 256
"""Datagrams between looks at the clock."""


def main(address: str, seconds: float, packets: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(os.environ["NETFOLD_ADDRESS"]))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 255)
        sock.connect((address, PORT))
        sent, began = 0, time.monotonic()
        while sent < packets and time.monotonic() < began + seconds:
            for _ in range(BURST):
                try:
                    sent += sock.send(b"netfold?") > 0
                except OSError:  # a queue is full, or nobody is there
                    continue
            time.sleep(max(0.0, began + sent * seconds / packets - time.monotonic()))
        took = time.monotonic() - began
    print(json.dumps({"sent": sent, "seconds": took, "processor": time.process_time()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
