# SPDX-License-Identifier: Apache-2.0
"""Paths of flows that are not folded: who takes which, in the tables and told to ranks."""
