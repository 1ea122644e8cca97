# SPDX-License-Identifier: Apache-2.0
"""Nezha: one allreduce over several unlike rails, shares fed back from measured cost, a dead rail survived."""
