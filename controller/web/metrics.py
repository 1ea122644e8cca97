# SPDX-License-Identifier: Apache-2.0
"""The status of a fabric as Prometheus metrics, in the text format.

Counters are those of the switches: one that restarts counts from 0, which Prometheus recognises as a reset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from netfold.controller.switch.tables import FAULTS
from netfold.fabric.graph import bits_per_second
from netfold.wire.operator import JobStatus, LinkStatus, Outcomes, Punts, Status, SwitchStatus, Traffic

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


def text(status: Status) -> bytes:
    """The answer to a scrape: all metrics of a status."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(status))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, status: Status) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """No metrics in advance; prometheus_client would call `collect` otherwise."""
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield GaugeMetricFamily("netfold_uptime_seconds", "Since the controller was ready", status.uptime)
        yield from _switches(status.switches)
        yield from _links(status.links, {switch.name for switch in status.switches})
        yield from _jobs(status.jobs)
        yield from _totals(status)


def _switches(switches: list[SwitchStatus]) -> Iterator[Metric]:
    gauges = {
        "up": "1 where the switch is there and holds its entries",
        "drained": "1 where an operator has taken it out of use",
        "entries": "Table entries, multicast groups and clone sessions that it holds",
        "slots_used": "Aggregation slots that jobs have of it",
        "slots": "Aggregation slots that it has",
    }
    for name, words in gauges.items():
        family = GaugeMetricFamily(f"netfold_switch_{name}", words, labels=["switch", "role"])
        for switch in switches:
            family.add_metric([switch.name, switch.role], float(getattr(switch, name)))
        yield family
    corrupt = CounterMetricFamily("netfold_switch_corrupt_packets", "Dropped at the first hop: their ICRC did not hold",
                                  labels=["switch"])
    refused = CounterMetricFamily(
        "netfold_switch_refused_packets", "Dropped where they came in: a host's, but not from its address (spoofed), "
        "at a port where the fabric has no link (unassigned), or a host's to a fold address, without an entry that "
        "folds it (unfolded)", labels=["switch", "reason"])
    folded = CounterMetricFamily(
        "netfold_switch_folded_packets", "Contributions and results by what became of them: first, or repeats that "
        "were answered here, asked of the level above, waiting for others, late, here already, sent onward to a NIC's "
        "successor; a NIC's packets ahead of a gap; packets unlike those before them; NAKs answered by another",
        labels=["switch", "outcome"])
    punts = CounterMetricFamily(
        "netfold_switch_punts_dropped_packets", "For the CPU port, by why they did not reach the controller: from a "
        "port that may send none, beyond a port's rate, dropped on the way from the switch", labels=["switch", "why"])
    for switch in switches:
        for why in Punts.__struct_fields__:
            punts.add_metric([switch.name, why], getattr(switch.punts, why))
        corrupt.add_metric([switch.name], switch.corrupt)
        for reason in ("spoofed", "unassigned", "unfolded"):
            refused.add_metric([switch.name, reason], getattr(switch, reason))
        for outcome in Outcomes.__struct_fields__:
            folded.add_metric([switch.name, outcome], getattr(switch.folded, outcome))
    yield from (corrupt, refused, folded, punts)


def _links(links: list[LinkStatus], switches: set[str]) -> Iterator[Metric]:
    ends = ["a", "b", "kind"]
    up = GaugeMetricFamily("netfold_link_up", "1 where both ends are up and probes arrive", labels=ends)
    drained = GaugeMetricFamily("netfold_link_drained", "1 where nothing new goes over it, by choice", labels=ends)
    rate = GaugeMetricFamily("netfold_link_rate_bytes_per_second", "Of each direction, where it is limited",
                             labels=ends)
    way = ["sender", "receiver", "kind"]
    count = CounterMetricFamily("netfold_link_bytes", "Ethernet frames without FCS, each direction", labels=way)
    packets = CounterMetricFamily("netfold_link_packets", "Frames, each direction", labels=way)
    spoofed = CounterMetricFamily("netfold_link_spoofed_packets", "Of a host, dropped since they did not come from its "
                                  "address", labels=["sender", "receiver"])
    gaps = CounterMetricFamily("netfold_link_gaps", "In the PSNs of folding, noticed by the switch that receives: each "
                               "is a NAK", labels=["sender", "receiver"])
    faults = CounterMetricFamily("netfold_link_faults", "Packets that faults on purpose have hit",
                                 labels=["sender", "receiver", "fault"])
    for link in links:
        kind = "uplink" if {link.a.rpartition(":")[0], link.b.rpartition(":")[0]} <= switches else "host"
        up.add_metric([link.a, link.b, kind], float(link.up))
        drained.add_metric([link.a, link.b, kind], float(link.drained))
        if link.rate is not None:
            rate.add_metric([link.a, link.b, kind], bits_per_second(link.rate) / 8)
        for sender, receiver, traffic in ((link.a, link.b, link.a_to_b), (link.b, link.a, link.b_to_a)):
            count.add_metric([sender, receiver, kind], traffic.bytes)
            packets.add_metric([sender, receiver, kind], traffic.packets)
            if kind == "host":
                spoofed.add_metric([sender, receiver], traffic.spoofed)
            gaps.add_metric([sender, receiver], traffic.gaps)
            _faults(faults, sender, receiver, traffic)
    yield from (up, drained, rate, count, packets, spoofed, gaps, faults)


def _faults(family: CounterMetricFamily, sender: str, receiver: str, traffic: Traffic) -> None:
    for fault in FAULTS:
        family.add_metric([sender, receiver, fault], getattr(traffic, fault))


def _jobs(jobs: list[JobStatus]) -> Iterator[Metric]:
    """Metrics of jobs that have not ended."""
    here = [job for job in jobs if job.state != "finished"]
    states = GaugeMetricFamily("netfold_jobs", "Jobs that have not ended", labels=["state"])
    for state, number in sorted(Counter(job.state for job in here).items()):
        states.add_metric([state], number)
    yield states
    labels = ["job", "epoch"]
    ranks = GaugeMetricFamily("netfold_job_ranks", "Ranks by what has become of them", labels=[*labels, "state"])
    trees = GaugeMetricFamily("netfold_job_trees", "Trees that fold for it; 0: its ranks run a ring", labels=labels)
    rounds = CounterMetricFamily("netfold_job_rounds", "Times that its trees were planned anew", labels=labels)
    still = GaugeMetricFamily("netfold_job_stands_still", "1 while its ranks wait for other trees", labels=labels)
    for job in here:
        key = [job.name, str(job.epoch)]
        there = len(job.joined) - len(job.left) - len(job.lost)
        for state, number in (("there", there), ("missing", job.world - len(job.joined)), ("left", len(job.left)),
                              ("lost", len(job.lost))):
            ranks.add_metric([*key, state], number)
        trees.add_metric(key, len(job.trees))
        rounds.add_metric(key, 0 if job.round is None else job.round.number)
        still.add_metric(key, float(job.round is not None and job.round.took is None))
    yield from (ranks, trees, rounds, still)


def _totals(status: Status) -> Iterator[Metric]:
    totals = status.totals
    yield CounterMetricFamily("netfold_jobs_complete", "Jobs whose ranks have all joined", totals.jobs)
    yield SummaryMetricFamily("netfold_round_seconds", "That ranks stood still while their trees were planned anew",
                              count_value=totals.rounds, sum_value=totals.round_seconds)
    told = {
        "operations": "Collectives, of every rank that has left",
        "bytes_reduced": "Payload that was summed, of every rank that has left",
        "packets_sent": "By every rank that has left",
        "retransmissions": "Packets sent again, by every rank that has left",
    }
    for name, words in told.items():
        yield CounterMetricFamily(f"netfold_ranks_{name}", words, msgspec.structs.asdict(totals)[name])
