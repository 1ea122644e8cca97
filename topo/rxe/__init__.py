# SPDX-License-Identifier: Apache-2.0
"""Hosts that are virtual machines with Debian's unmodified kernel, whose RDMA device is Linux's rdma_rxe.

Two machines joined by a plain wire, and a command in each at the same time:

    python -m netfold.topo.rxe 'ibv_devinfo -v; ip address' 'ibv_devinfo'

A machine sees the file system of this one, so the same Python and the same NetFold run in it; what it writes is lost
with it, except in the folder that it shares.  From the bottom up:

    packages    from apt, unpacked into a cache and not installed: the kernel, its modules, libibverbs, perftest
    image       the initial file system of a guest, from a kernel and the modules that rdma_rxe needs
    engines     the C engines of ranks, compiled here for the processors of guests
    frames      messages on the line between a guest and this machine
    agent       process 1 of a guest: runs commands, carries connections to sockets of this machine
    attach      runs a command in a guest as if it ran here, as mnexec does for namespaces
    line        carries these messages between a guest's agent and programs here
    machine     one QEMU process, its taps and its line
    counts      what a guest's RDMA device has sent, repeated and acknowledged
    hosts       machines as hosts of a Mininet topology
"""
