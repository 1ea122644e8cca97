# SPDX-License-Identifier: Apache-2.0
"""The compiled program of p4src: with hosts, controller and models of switches, and on real interfaces."""
