# SPDX-License-Identifier: Apache-2.0
"""The rail "verbs": the switches fold the packets of an RDMA NIC's RC queue pairs."""
