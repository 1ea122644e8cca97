# SPDX-License-Identifier: Apache-2.0
"""The controller's web page: a drawing of the fabric with the traffic of its links, and tables of switches and jobs.

The page fetches its content once a second; nothing is loaded from other servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

from netfold.controller.web import picture
from netfold.fabric.graph import Fabric, bits_per_second
from netfold.wire.operator import JobStatus, Status, SwitchStatus, Traffic

UNSHAPED: Final = 1e8
"""bit/s that are drawn as the widest line where links have no rate, so that an idle fabric's probes are thin."""
PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>NetFold</title><style>
body { font: 14px Helvetica, Arial, sans-serif; margin: 1.5em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } th, td { text-align: left; padding: 2px 14px 2px 0 }
th { border-bottom: 1px solid #999 } svg { max-width: 100%; height: auto }
.bad { color: #b00020 } .drained { color: #9a6e00 } #late { display: none } .late #late { display: inline }
.late #live { opacity: 0.4 }
</style></head><body><span id="late" class="bad">the controller does not answer</span><div id="live"></div><script>
async function look() {
  try {
    const answer = await fetch("live", {signal: AbortSignal.timeout(5000)});
    if (!answer.ok) throw new Error(answer.status);
    document.getElementById("live").innerHTML = await answer.text();
    document.body.className = "";
  } catch (error) { document.body.className = "late"; }
  setTimeout(look, 1000);
}
look();
</script></body></html>
"""


class Rate(NamedTuple):
    """The traffic of a link: bit/s each way, and packets lost by injected faults, both ways together."""

    a: str
    b: str
    there: float
    back: float
    lost: float


def live(fabric: Fabric, before: Status, now: Status, seconds: float) -> str:
    """The content of the page: the difference of two statuses, ``seconds`` apart."""
    rates = [
        Rate(new.a, new.b, _rate(old.a_to_b, new.a_to_b, seconds), _rate(old.b_to_a, new.b_to_a, seconds),
             new.a_to_b.lost + new.b_to_a.lost)
        for old, new in zip(before.links, now.links, strict=True)
    ]
    up = sum(switch.up for switch in now.switches)
    head = f"{now.fabric} on {now.engine}, controller up {now.uptime:.0f} s, {up} of {len(now.switches)} switches up"
    down = [*(s.name for s in now.switches if not s.up), *(link.a for link in now.links if not link.up)]
    drained = [*(s.name for s in now.switches if s.drained), *(link.a for link in now.links if link.drained)]
    full = max((bits_per_second(link.rate) for link in fabric.links if link.rate), default=UNSHAPED)
    drawn = picture.draw(fabric, rates, now.fabric, words, full=full, down=down, drained=drained)
    pairs = zip(before.switches, now.switches, strict=True)
    jobs = [_job(job) for job in now.jobs if job.state != "finished"]
    return (f"{drawn}<p>{escape(head)}</p>" + _table(("switch", "state", "slots", "folded/s", "entries"),
                           [_switch(old, new, seconds) for old, new in pairs])
            + (_table(("job", "state", "ranks", "trees", "last re-planning"), jobs) if jobs else "<p>no jobs</p>"))


def words(rate: float) -> str:
    """A rate in bit/s with a suitable unit."""
    for unit in ("b/s", "kb/s", "Mb/s"):
        if rate < 999.5:
            return f"{rate:.3g} {unit}"
        rate /= 1000
    return f"{rate:.3g} Gb/s"


def _rate(old: Traffic, new: Traffic, seconds: float) -> float:
    """bit/s between two readings; 0 if the switch was restarted, since it counts from 0 then."""
    return max(0, new.bytes - old.bytes) * 8 / seconds


def _switch(old: SwitchStatus, new: SwitchStatus, seconds: float) -> Sequence[str]:
    state = "up" if new.up else f'<span class="bad">down: {escape(new.problem)}</span>'
    if new.drained:
        state += ', <span class="drained">drained</span>'
    folded = max(0, new.folded.first - old.folded.first) / seconds
    return (escape(new.name), state, f"{new.slots_used} of {new.slots}", f"{folded:.0f}", str(new.entries))


def _job(job: JobStatus) -> Sequence[str]:
    there = len(job.joined) - len(job.left) - len(job.lost)
    lost = f', <span class="bad">{len(job.lost)} lost</span>' if job.lost else ""
    trees = " ".join(tree.root for tree in job.trees) or job.reason or "-"
    last = "-"
    if job.round is not None:
        took = "the ranks stand still" if job.round.took is None else f"{job.round.took * 1e3:.0f} ms"
        last = f"{job.round.number}: {job.round.why}; {took}"
    return (escape(job.name), escape(job.state), f"{there} of {job.world}{lost}", escape(trees),
            escape(f"{last}; {job.stays}" if job.stays else last))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; the cells of ``rows`` are HTML already."""
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return ("<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"
            + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>")
