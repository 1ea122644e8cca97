# SPDX-License-Identifier: Apache-2.0
"""A report of the demo without a run of the demo."""

from __future__ import annotations

import msgspec

from netfold.demo import report


def a_report(**changes: object) -> report.DemoReport:
    """A report of a small run, but for ``changes``."""
    fields: dict[str, object] = {
        "engine": "softswitch", "hosts": "namespaces", "ranks": 2, "leaves": 1, "spines": 0,
        "rate": None, "loss_rate": 0.0, "seed": 0,
        "steps": 1, "seconds": 1.0, "seconds_in_allreduce": 0.5, "rail": "innet", "lane_bits": 32, "explain": "",
        "loss": 0.1, "loss_single": 0.1, "accuracy": 0.9, "accuracy_single": 0.9,
        "final_weights_equal": True, "weights_sha256": "ab" * 32, "max_abs_diff_vs_single": 1e-7,
        "gradient_bytes": 1000, "bytes_per_host_link": 1100.0, "ring_bytes_per_host_link": 1100.0,
        "retransmissions": 0, "packets_sent": 2, "packets_lost": 0,
        "packets_folded": 2, "nic_retransmissions": None, "nics": [],
        "trees": [report.TreeTotals("leaf1", 1000, 2, 0)], "times": [report.AllreduceTime("in the network", 0.01)],
        "links": [report.LinkBytes("leaf1:1", "h1:0", 1, 2, 3, 4, 0)],
    }
    return msgspec.convert({**msgspec.to_builtins(fields), **changes}, report.DemoReport)
