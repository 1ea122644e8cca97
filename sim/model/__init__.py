# SPDX-License-Identifier: Apache-2.0
"""The protocol of the fold as a state space, explored exhaustively: windowed and RC children, one level or two.

    fabric       sizes of what is explored, and the rules, each of which can be left out
    state        a state of switches, ranks and the network
    system       what switches and ranks do with a packet, in one state
    exploration  all states that the worst network leads to, and from which of them the ranks can still finish
"""
