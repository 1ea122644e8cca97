# SPDX-License-Identifier: Apache-2.0
"""Byte messages between every two ranks: what collectives run on, and what carries it."""
