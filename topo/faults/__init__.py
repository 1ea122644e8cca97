# SPDX-License-Identifier: Apache-2.0
"""Faults of a running fabric, made on request and undone."""
