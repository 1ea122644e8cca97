# SPDX-License-Identifier: Apache-2.0
"""The reactions of switches and ranks to one packet, and to all packets that follow from it.

**The network.**  Loss, duplication, reordering and delay are one thing here: every packet that was ever sent may arrive
at any later moment, any number of times, or never.  So the network is no more than the sets of what was sent.  Most of
these sets follow from the rest of the state; where they do not, a larger set is taken, which only makes the worst
network worse:

* contributions: all that the rank's credits allow by now, in any order, those of RC ranks, too;
* ACKs of an RC successor: one for each PSN that it has received, any of which may still reach the leaf of the sender,
  and any that did may reach the sender.  A NAK or RNR NAK acknowledges all below its PSN and makes the sender go back,
  which it may do at any time anyhow, since its timer fires when it likes: so each of them is an ACK here;
* asks of windowed ranks, and NAKs for gaps that a switch sees in the PSNs of a windowed rank, a leaf or its parent: for
  any PSN, at any time.  All that they bring about is that something is sent again, which the first point allows
  anyhow, or a further ask.  Hence no state needs the expected PSNs of windowed senders, and the proof of liveness
  does without NAKs for gaps: the timers of ranks are enough;
* sums of leaves, results of switches and presence in their place are kept (``State``); repeats add nothing to them.
  Lanes that a switch has sent to some may reach any of its receivers, to whom presence is enough as well.

**At once.**  ``ModelSystem(..., at_once=True)`` has a network without loss or delay: what a packet brings about is
delivered, too, and so on until all is quiet.  Otherwise what is sent may arrive in a later step.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import or_

from netfold.sim.model.fabric import WINDOWED, ModelFabric, Rules
from netfold.sim.model.state import FREE, ModelSlot, State, bits, lowest_missing


class WrongSum(Exception):
    """Words that do not hold the contribution of each child exactly once were sent, or would be taken for a result."""


class WrongAcknowledgement(Exception):
    """An RC sender believes that its successor has what it lacks: nobody would ever repeat it."""


class NotKept(Exception):
    """A rank is to begin with a packet that it does not have any more."""


class ModelSystem:
    """A state that is being changed."""

    def __init__(self, fabric: ModelFabric, rules: Rules, state: State, *, at_once: bool = False) -> None:
        self.fabric, self.rules, self.at_once = fabric, rules, at_once
        self.state = state
        self.receivers = fabric.neighbourhood if rules.repeat == "onward" else fabric.ranks_of
        self.changed = False
        self.received = list(state.received)
        self.acknowledged = list(state.acknowledged)
        self.flow_expected = list(state.flow_expected)
        self.flow_acknowledged = list(state.flow_acknowledged)
        self.told = state.told
        self.slots = [list(slots) for slots in state.slots]
        self.sums = list(state.sums)
        self.content_sums = list(state.content_sums)
        self.results = list(state.results)
        self.acknowledgements = list(state.acknowledgements)

    def freeze(self) -> State:
        """The state, without packets that change nothing any more, so that equal states are one.

        Slots and ranks only move forward within an epoch: a result that its receivers have, and a sum or result whose
        slot is past it, never matters again.
        """
        state, received, leaves = self.state, tuple(self.received), len(self.fabric.leaves)
        return state._replace(
            received=received,
            had=tuple(map(or_, state.had, received)),
            acknowledged=tuple(self.acknowledged),
            confirmed=tuple(map(max, state.confirmed, self.acknowledged)),
            flow_expected=tuple(self.flow_expected),
            flow_acknowledged=tuple(self.flow_acknowledged),
            told=self.told,
            slots=tuple(map(tuple, self.slots)),
            sums=self._kept(self.sums, self._sum_matters),
            content_sums=self._kept(self.content_sums, self._sum_matters),
            results=(*[sent and sent & self._lacking(leaf) for leaf, sent in enumerate(self.results[:leaves])],
                     *self._kept(self.results[leaves:], self._result_matters, first=leaves)),
            acknowledgements=self._kept(self.acknowledgements, self._acknowledgement_matters),
        )

    def _kept(self, sent: list[int], matters: Callable[[int, int], bool], first: int = 0) -> tuple[int, ...]:
        """The packets of each sender, from the first one on, without those that do not matter."""
        if not any(sent):
            return tuple(sent)
        return tuple([sum([1 << psn for psn in bits(one) if matters(sender, psn)])
                      for sender, one in enumerate(sent, first)])

    def _lacking(self, leaf: int) -> int:
        """The PSNs of which a receiver of the leaf's results has none."""
        lacking = 0
        for rank in self.receivers[leaf]:
            lacking |= ~self.received[rank]
        return lacking

    def _sum_matters(self, leaf: int, psn: int) -> bool:
        """May a leaf's sum still change anything?  Not once its slot at the spine has it, or is past it."""
        slot = self._slot(self.fabric.spine, psn)
        return slot.psn < psn or (slot.psn == psn and not slot.bitmap >> leaf & 1) or self.state.restarts > 0

    def _result_matters(self, switch: int, psn: int) -> bool:
        """May a switch's result still change anything?  Not once its receivers have it, or are past it."""
        if switch != self.fabric.spine:
            return self._lacking(switch) >> psn & 1 > 0
        return any(self._result_matters_to(leaf, psn) for leaf in range(switch)) or self.state.restarts > 0

    def _result_matters_to(self, leaf: int, psn: int) -> bool:
        slot = self._slot(leaf, psn)
        return slot.psn < psn or (slot.psn == psn and not slot.done)

    def _acknowledgement_matters(self, receiver: int, psn: int) -> bool:
        """The same for presence in the place of a result, of each receiver by itself."""
        leaf = receiver - self.fabric.ranks
        if leaf < 0:
            return not self.received[receiver] >> psn & 1
        return self._result_matters_to(leaf, psn) or self.state.restarts > 0

    # ---- ranks -------------------------------------------------------------------------------------------------------
    def limit(self, rank: int) -> int:
        """The PSN before which a rank sends."""
        fabric, state = self.fabric, self.state
        if rank in fabric.unbounded:
            return fabric.psns
        lowest = lowest_missing(self.received[rank])
        if fabric.kinds[rank] == WINDOWED:
            return min(lowest + fabric.window, state.begun[rank])
        through = min(lowest, self.acknowledged[rank]) if self.rules.waits_for_acknowledgement else lowest
        return min(fabric.credit[state.starts[rank]][through], state.begun[rank])

    def receive(self, rank: int, psn: int) -> None:
        """A result, whose words were checked where it was sent, reaches a rank."""
        if self.fabric.kinds[rank] == WINDOWED:
            self.received[rank] |= 1 << psn
            self.changed = True
            return
        expected = lowest_missing(self.received[rank])
        if psn > expected:
            return  # a NAK may follow, which acknowledges no more than the ACK before it
        if psn == expected:
            self.received[rank] |= 1 << psn
            self.changed = True
        if self.at_once and not self.state.left >> rank & 1:
            self.pass_acknowledgement(rank, lowest_missing(self.received[rank]))

    def receive_presence(self, rank: int, psn: int) -> None:
        """Presence reaches a windowed rank: all contributions have come.  It is no result where the rank wants lanes
        that somebody contributes."""
        if self.fabric.is_content(rank, psn) or not self.fabric.contributors(psn):
            self.received[rank] |= 1 << psn
            self.changed = True

    def pass_acknowledgement(self, successor: int, psn: int) -> None:
        """An ACK that says "all below psn" passes the leaf of the rank before on its way there."""
        rank = self.fabric.predecessor[successor]
        self.watch(rank, psn)
        self.acknowledge(rank, psn)

    def watch(self, rank: int, psn: int) -> None:
        """The leaf of an RC sender sees its successor's ACK on its way."""
        if psn > self.flow_acknowledged[rank]:
            self.flow_acknowledged[rank] = psn
            self.changed = True

    def acknowledge(self, rank: int, psn: int) -> None:
        """An ACK, NAK or RNR NAK reaches an RC sender: its successor has all below psn."""
        if psn > self.acknowledged[rank]:
            self.acknowledged[rank] = psn
            self.changed = True
            successor = self.fabric.successor[rank]
            if psn > lowest_missing(self.received[successor]):
                raise WrongAcknowledgement(f"rank {rank} believes that {successor} has all below {psn}")

    def go_back(self, rank: int) -> None:
        """The timer of an RC sender fires: it sends the first packet again that is not acknowledged, and all after it
        if it is a NIC that does so (``ModelFabric.goes_back``)."""
        psn = self.acknowledged[rank]
        while psn < self.limit(rank):
            self.contribute(rank, psn)
            if self.fabric.goes_back == "oldest":
                break
            psn = max(psn + 1, self.acknowledged[rank])

    # ---- leaves ------------------------------------------------------------------------------------------------------
    def contribute(self, rank: int, psn: int) -> None:
        """A rank's contribution reaches its leaf."""
        fabric = self.fabric
        leaf = fabric.leaf_of[rank]
        if fabric.kinds[rank] != WINDOWED:
            ahead = fabric.age(psn, self.flow_expected[rank])
            if ahead > 0:
                self._tell(rank, of_gap=True)
                first = self.flow_acknowledged[rank] if self.rules.nak == "acknowledged" else self.flow_expected[rank]
                self.acknowledge(rank, first)
                return
            if ahead < 0:
                if not self._passes_by(rank, psn):
                    self._repeated(leaf, rank, psn)
                return
            self._tell(rank, of_gap=False)
            self.flow_expected[rank] = psn + 1
            self.changed = True
        words = fabric.contributors(psn) & 1 << rank
        who = self._add(leaf, rank - fabric.ranks_of[leaf].start, psn, words, content=fabric.is_content(rank, psn))
        if who == "late" and fabric.kinds[rank] != WINDOWED:
            self._repeated(leaf, rank, psn)
        elif who == "all":
            self._send_results(leaf, psn, fabric.ranks_of[leaf])
        elif who == "asker":
            self._send_results(leaf, psn, [rank])
        elif who == "parent":
            self._send_up(leaf, psn, alone=not words)

    def _tell(self, rank: int, *, of_gap: bool) -> None:
        """An RC child shows a gap, and is told of it; or it fills the gap."""
        told = self.told | 1 << rank if of_gap else self.told & ~(1 << rank)
        self.changed = self.changed or told != self.told
        self.told = told

    def _passes_by(self, rank: int, psn: int) -> bool:
        """True if a repeat is only part of an RC child's go-back to a gap that it was told of."""
        if not self.told >> rank & 1 or self.rules.on_the_way_back == "all":
            return False
        lowest = self.flow_acknowledged[rank]
        return psn > lowest or (psn == lowest and self.rules.on_the_way_back == "none")

    def _repeated(self, leaf: int, rank: int, psn: int) -> None:
        """An RC child's contribution that the leaf has taken before."""
        slot = self._slot(leaf, psn)
        age = self._age(psn, slot)
        acknowledged = self.flow_acknowledged[rank]
        if self.rules.late == "acknowledge" and (self.fabric.age(psn, acknowledged) < 0 or age < 0):
            self.acknowledge(rank, acknowledged)
        elif age < 0:
            if self.rules.late == "pass on":
                self._route(rank, psn)
        elif age == 0 and slot.done:
            successor = self.fabric.successor[rank]
            self._send_results(leaf, psn, [successor if self.rules.repeat == "onward" else rank])
        elif age == 0 and slot.bitmap == self.fabric.full[leaf]:
            self._send_up(leaf, psn)
        elif psn == acknowledged:
            self.acknowledge(rank, acknowledged)  # an RNR NAK

    def _route(self, rank: int, psn: int) -> None:
        """An RC rank's contribution reaches its successor as it is."""
        successor = self.fabric.successor[rank]
        if psn >= lowest_missing(self.received[successor]):
            raise WrongSum(f"rank {successor} takes rank {rank}'s contribution to PSN {psn} for the result")

    def ask(self, rank: int, psn: int) -> None:
        """A windowed rank tells its leaf that it lacks a result."""
        leaf = self.fabric.leaf_of[rank]
        slot = self._slot(leaf, psn)
        age = self._age(psn, slot)
        child = rank - self.fabric.ranks_of[leaf].start
        complete = age == 0 and slot.bitmap == self.fabric.full[leaf]
        cannot_be_made = psn in self.fabric.immediate and complete and (
            slot.done or self.rules.asks_the_child_for_what_cannot_be_made
        )
        if age > 0 or (age == 0 and not slot.bitmap >> child & 1) or cannot_be_made:
            if self.rules.tells_what_is_missing and self.at_once and psn < self.limit(rank):
                self.contribute(rank, psn)  # the NAK makes the rank repeat it; it may at any time, if not at once
        elif age == 0 and slot.done:
            self._send_results(leaf, psn, [rank])
        elif complete and self.rules.passes_asks_on:
            self._ask_spine(leaf, psn)

    def result_from_parent(self, leaf: int, psn: int) -> None:
        """A result reaches a leaf."""
        slot = self._slot(leaf, psn)
        if slot.psn >= 0 and self._age(psn, slot) == 0 and slot.bitmap == self.fabric.full[leaf] and not slot.done:
            self._put(leaf, ModelSlot(psn, slot.bitmap, True, self.fabric.contributors(psn), content=slot.content))
            self._send_results(leaf, psn, self.fabric.ranks_of[leaf])

    def presence_from_parent(self, leaf: int, psn: int) -> None:
        """Presence in the place of a result reaches a leaf: it takes it if it has no lanes, or nobody wants any."""
        slot = self._slot(leaf, psn)
        full = self.fabric.full[leaf]
        if slot.psn >= 0 and self._age(psn, slot) == 0 and slot.bitmap == full and not slot.done and (
            slot.empty or slot.content == full
        ):
            self._put(leaf, slot._replace(done=True))
            self._send_results(leaf, psn, self.fabric.ranks_of[leaf])

    def asked_by_parent(self, leaf: int, psn: int) -> None:
        """The spine tells a leaf that it lacks its sum."""
        slot = self._slot(leaf, psn)
        complete = self._age(psn, slot) == 0 and slot.bitmap == self.fabric.full[leaf]
        if complete and psn not in self.fabric.immediate and not (slot.done and self.rules.sum_only_until_done):
            self._send_up(leaf, psn)

    # ---- the spine ---------------------------------------------------------------------------------------------------
    def content_sum_from_leaf(self, leaf: int, psn: int) -> None:
        """The same, where it says that the acknowledgement is enough."""
        self.sum_from_leaf(leaf, psn, content=True)

    def sum_from_leaf(self, leaf: int, psn: int, *, content: bool = False) -> None:
        """A leaf's sum, or its presence where none of its ranks has lanes, reaches the spine."""
        spine = self.fabric.spine
        who = self._add(spine, leaf, psn, self.fabric.part[leaf] & self.fabric.contributors(psn), content=content)
        if who == "all":
            self._send_results(spine, psn, range(len(self.fabric.leaves)))
        elif who == "asker":
            self._send_results(spine, psn, [leaf])

    def _ask_spine(self, leaf: int, psn: int) -> None:
        slot = self._slot(self.fabric.spine, psn)
        age = self._age(psn, slot)
        cannot_be_made = age == 0 and slot.done and psn in self.fabric.immediate
        if age > 0 or (age == 0 and not slot.bitmap >> leaf & 1) or cannot_be_made:
            if self.rules.tells_what_is_missing:
                self.asked_by_parent(leaf, psn)
        elif age == 0 and slot.done:
            self._send_results(self.fabric.spine, psn, [leaf])

    # ---- any switch --------------------------------------------------------------------------------------------------
    def _add(self, switch: int, child: int, psn: int, words: int, *, content: bool) -> str:
        """Takes a contribution, and says who gets a packet: nobody, parent, asker or all; or that it is late.

        words    the ranks whose lanes it holds; 0: presence
        content  whether the acknowledgement is enough to the child
        """
        slot = self._slot(switch, psn)
        age = self._age(psn, slot)
        root = switch == self.fabric.spine or self.fabric.spine < 0
        full = self.fabric.full[switch]
        if age < 0 and self.rules.checks_age:
            return "late"
        if age != 0:
            slot = ModelSlot(psn, 1 << child, False, words or self.fabric.leftover, not words, content << child)
        elif slot.done:
            return "asker"
        elif slot.bitmap >> child & 1:
            return "parent" if slot.bitmap == full else "nobody"
        else:
            if slot.words & words:
                raise WrongSum(f"switch {switch}, PSN {psn}: child {child} added twice")
            slot = self._with(slot, words)._replace(bitmap=slot.bitmap | 1 << child,
                                                    content=slot.content | content << child)
        if not self.rules.keeps_content:
            slot = slot._replace(content=full if content else 0)
        complete = slot.bitmap == full
        if complete and root:
            slot = slot._replace(done=True)
        self._put(switch, slot)
        return "nobody" if not complete else "all" if root else "parent"

    def _with(self, slot: ModelSlot, words: int) -> ModelSlot:
        """The slot with one contribution more, of these words."""
        if not words:
            return slot if self.rules.presence_adds_nothing or slot.empty else slot._replace(words=0)
        if slot.empty and self.rules.stores_first_lanes:
            return slot._replace(words=words, empty=False)
        return slot._replace(words=slot.words | words, empty=False)

    def _send_up(self, leaf: int, psn: int, *, alone: bool = False) -> None:
        """Sends a leaf's sum to the spine.

        alone  what completed it, and goes on, is presence
        """
        slot, full = self._slot(leaf, psn), self.fabric.full[leaf]
        words = 0 if slot.empty or (alone and not self.rules.presence_goes_on_with_lanes) else slot.words
        if words != self.fabric.part[leaf] & self.fabric.contributors(psn):
            raise WrongSum(f"leaf {leaf} sends the words of ranks {bits(words)} up as its sum of PSN {psn}")
        content = slot.content == full if self.rules.content_if_all else slot.content > 0
        sums = self.content_sums if content else self.sums
        if not sums[leaf] >> psn & 1 and self._sum_matters(leaf, psn):
            sums[leaf] |= 1 << psn
            self.changed = True
        if self.at_once:
            self.sum_from_leaf(leaf, psn, content=content)

    def _send_results(self, switch: int, psn: int, to: range | list[int]) -> None:
        """Sends a slot's words as a result, or presence in their place: to leaves, or to ranks."""
        slot, to_leaves = self._slot(switch, psn), switch == self.fabric.spine
        first = 0 if to_leaves else self.fabric.ranks_of[switch].start
        content = [receiver for receiver in to if receiver >= first and slot.content >> (receiver - first) & 1]
        wanting = [receiver for receiver in to if receiver not in content]
        words = 0 if slot.empty else slot.words
        if wanting and words != self.fabric.contributors(psn):
            raise WrongSum(f"switch {switch} sends the words of ranks {bits(words)} as the result of PSN {psn}")
        if wanting and words and not self.results[switch] >> psn & 1 and self._result_matters(switch, psn):
            self.results[switch] |= 1 << psn
            self.changed = True
        alone = content if words else [*content, *wanting]
        for receiver in alone:
            number = self.fabric.ranks + receiver if to_leaves else receiver
            if not self.acknowledgements[number] >> psn & 1 and self._acknowledgement_matters(number, psn):
                self.acknowledgements[number] |= 1 << psn
                self.changed = True
        if self.at_once:
            for receiver in alone:
                (self.presence_from_parent if to_leaves else self.receive_presence)(receiver, psn)
            for receiver in wanting if words else []:
                (self.result_from_parent if to_leaves else self.receive)(receiver, psn)

    def results_for(self, rank: int) -> int:
        """PSNs of the results that may reach a rank."""
        sent = 0
        for leaf in range(len(self.fabric.leaves)):
            if rank in self.receivers[leaf]:
                sent |= self.results[leaf]
        return sent & ~self.received[rank]

    def _age(self, psn: int, slot: ModelSlot) -> int:
        return 1 if slot.psn < 0 else self.fabric.age(psn, slot.psn)

    def _slot(self, switch: int, psn: int) -> ModelSlot:
        return self.slots[switch][psn % self.fabric.slots]

    def _put(self, switch: int, slot: ModelSlot) -> None:
        self.changed = True
        self.slots[switch][slot.psn % self.fabric.slots] = slot

    def restart(self, switch: int) -> None:
        """A switch loses its slots and flows."""
        self.changed = True
        self.slots[switch] = [FREE] * self.fabric.slots
        if switch != self.fabric.spine:
            for rank in self.fabric.ranks_of[switch]:
                self.flow_expected[rank] = self.flow_acknowledged[rank] = self.state.starts[rank]
                self.told &= ~(1 << rank)
                if not self.rules.guarded and self.fabric.successor[rank] >= 0:
                    for psn in range(self.state.starts[rank], self.limit(rank)):
                        self._route(rank, psn)
