# SPDX-License-Identifier: Apache-2.0
"""Workloads: what each host sends when, for collectives and training steps."""
