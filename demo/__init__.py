# SPDX-License-Identifier: Apache-2.0
"""The demo: workers train a real model through a fabric of P4 switches, and a report shows what was measured."""
