# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for p4c's and BMv2's programs, so that what calls those runs on softswitch.

install          writes them into a folder: `softswitch tools DIR`
p4c              p4c-bm2-ss and p4c
simple_switch    simple_switch and simple_switch_grpc, with their options (switch_options, program_options), and what
                 they say (switch_output)
cli/             simple_switch_CLI
bmv2_modules     BMv2's Python modules, as texts; p4config those that PI's build makes
"""
