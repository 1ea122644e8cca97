# SPDX-License-Identifier: Apache-2.0
"""Copies between the memory of accelerators and pinned memory of the host, from which collectives are sent.

Needs torch; nothing here is imported before an array on a device comes.
"""
