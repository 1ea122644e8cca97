# SPDX-License-Identifier: Apache-2.0
"""Reproducible reductions: bits that follow from the multiset of contributions alone, made of integer collectives."""
