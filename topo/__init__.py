# SPDX-License-Identifier: Apache-2.0
"""Fabrics of real processes on one machine: Mininet topologies, switches, links, and the ranks in their hosts.

Importing this package makes Debian's ``mininet`` importable (mininet_path.py); nothing else happens.
"""

from netfold.topo.network import mininet_path

mininet_path.install()
