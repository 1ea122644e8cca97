# SPDX-License-Identifier: Apache-2.0
"""Every collective over messages between ranks: one algorithm a module, whose docstring states its steps and bytes.

    allreduce           ring, halving_doubling, recursive_doubling, double_binary_tree, parameter_server, byteps,
                        mesh2d, tidalmesh, hierarchical (with shared_memory)
    with a root         broadcast, reduce, scatter, gather; between two ranks: point_to_point
    pieces              ring.reduce_scatter, ring.all_gather, all_to_all
    synchronisation     barrier
    shared helpers      flow (strands and segments), machines (which ranks share one)

All are strands (``flow``) on a ``Mesh``: ``run(mesh, ring.allreduce(mesh, data, Reduction("sum", "float32")))``.
"""

from __future__ import annotations

from collections.abc import Callable

from netfold.host.collectives import (
    broadcast,
    byteps,
    double_binary_tree,
    halving_doubling,
    mesh2d,
    parameter_server,
    recursive_doubling,
    reduce,
    ring,
)
from netfold.host.collectives.flow import Strand
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction

ALLREDUCE: dict[str, Callable[[Mesh, Flat, Reduction], Strand]] = {
    "ring": ring.allreduce,
    "halving_doubling": halving_doubling.allreduce,
    "recursive_doubling": recursive_doubling.allreduce,
    "double_binary_tree": double_binary_tree.allreduce,
    "parameter_server": parameter_server.allreduce,
    "byteps": byteps.allreduce,
    "mesh2d": mesh2d.allreduce,
}
"""Allreduce algorithms that need nothing but a mesh, by name."""
BROADCAST: dict[str, Callable[..., Strand]] = {
    "binomial": broadcast.binomial,
    "chain": broadcast.chain,
    "scatter_all_gather": broadcast.scatter_all_gather,
}
REDUCE: dict[str, Callable[..., Strand]] = {
    "binomial": reduce.binomial,
    "reduce_scatter_gather": reduce.reduce_scatter_gather,
}
