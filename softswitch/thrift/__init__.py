# SPDX-License-Identifier: Apache-2.0
"""BMv2's second control plane: the Thrift services of simple_switch, for tools that were made for it.

server.py serves them in the process of a switch's P4Runtime server; client.py and modules.py are the other side, for
`simple_switch_CLI` and for scripts that import BMv2's Python modules. The messages are those of interface.py, in
Apache Thrift's binary protocol; the package `thrift` (the extra "tools") is imported nowhere else in softswitch.
"""
