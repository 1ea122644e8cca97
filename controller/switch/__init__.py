# SPDX-License-Identifier: Apache-2.0
"""One P4Runtime switch: its entries as plain data, what it should hold, and how it is brought there."""
