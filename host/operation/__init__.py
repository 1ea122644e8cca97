# SPDX-License-Identifier: Apache-2.0
"""An operation: its arrays, its reduction, its coding in lanes, and the interface of the rails that carry it."""
