# SPDX-License-Identifier: Apache-2.0
"""The public interface: communicators, groups, asynchronous work, Horovod's verbs and MPI's buffers."""

from __future__ import annotations

from netfold.host.api import enduring as enduring  # declares what Communicator.join(on_loss="shrink") makes
