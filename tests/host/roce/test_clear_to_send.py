# SPDX-License-Identifier: Apache-2.0
"""A peer is told of receives that its inbox has room for (host/roce/clear_to_send.py)."""

from __future__ import annotations

import numpy as np

from netfold.host.roce.clear_to_send import ENTRY_BYTES, INBOX_ENTRIES, Message, PeerTransfers


def test_a_peer_is_told_of_as_many_receives_as_its_inbox_has_entries_and_of_the_next_once_one_is_done() -> None:
    """One more would overwrite an entry that the peer may not have read yet, so its data went to another receive."""
    transfers = PeerTransfers(1)
    posted = [Message(np.zeros(4, np.uint8), (1, b"", 0), sends=False) for _ in range(INBOX_ENTRIES + 2)]
    told: list[tuple[Message, int]] = []
    for message in posted:
        transfers.receives.append(message)
        transfers.ungranted.append(message)
        told += transfers.grant()
    assert [message for message, _ in told] == posted[:INBOX_ENTRIES]
    assert [offset for _, offset in told] == [place * ENTRY_BYTES for place in range(INBOX_ENTRIES)]
    transfers.receives.remove(posted[0])
    assert list(transfers.grant()) == [(posted[INBOX_ENTRIES], 0)]
