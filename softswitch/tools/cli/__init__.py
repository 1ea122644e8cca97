# SPDX-License-Identifier: Apache-2.0
"""simple_switch_CLI: BMv2's commands, with its words, for a switch that serves Thrift (ours or BMv2's own).

    simple_switch_CLI [--thrift-port 9090] [--thrift-ip localhost] [--json program.json] < commands.txt
"""
