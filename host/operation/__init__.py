# SPDX-License-Identifier: Apache-2.0
"""What an operation is: its arrays, its reduction, its coding in lanes, and what a rail must offer to carry it."""
