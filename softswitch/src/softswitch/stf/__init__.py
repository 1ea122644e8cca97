# SPDX-License-Identifier: Apache-2.0
"""Packet tests in p4c's language (STF): `softswitch stf PROGRAM.p4 TEST.stf`."""
