# SPDX-License-Identifier: Apache-2.0
"""Requests of operators to a running controller: inspection, drains, differences."""
