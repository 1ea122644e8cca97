# SPDX-License-Identifier: Apache-2.0
"""The control plane: from a fabric file and joining ranks to table entries on P4Runtime switches.

    switch/      entries, sessions, and the reconciliation of a switch with its desired state
    health/      which switches and links are up, suppressed or drained
    jobs/        ranks join, get their plans, recover and leave
    paths/       paths of flows that are not folded
    operations/  what operators ask and change
    web/         metrics and a page
    controller   the process that joins all of them       client   calls to it for operators
"""
