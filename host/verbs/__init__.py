# SPDX-License-Identifier: Apache-2.0
"""The rail "verbs": the switches fold what the RC queue pairs of an RDMA NIC send."""
