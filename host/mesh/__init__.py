# SPDX-License-Identifier: Apache-2.0
"""Byte messages between any two ranks, which the collectives run on, and the transports that carry them."""
