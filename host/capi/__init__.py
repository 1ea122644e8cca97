# SPDX-License-Identifier: Apache-2.0
"""The C interface: netfold.h, a shared library that runs CPython, and the Python functions that it calls; and NCCL's
plug-in on top of it.

    netfold.h   the header for C programs
    netfold.c   checks arguments, enters CPython, and turns exceptions into a status and a text
    calls.py    the calls of netfold.h on communicators, with C memory as numpy arrays
    nccl_*.c    NCCL's plug-in: collectives on netfold.h (nccl_collnet.c), messages over TCP (nccl_sockets.c)
    library.py  builds the library; ``python -m netfold.host.capi FOLDER`` writes it there with its header
"""
