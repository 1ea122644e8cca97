# SPDX-License-Identifier: Apache-2.0
"""Jobs: who is let in, what they hold of the switches, how they go on when something breaks, and how they end."""
