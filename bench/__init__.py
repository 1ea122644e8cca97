# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, whose figures are ratios within one run.

commands/   `netfold bench NAME`, a module for each NAME: measures on a fabric of its own and prints a table
options/    the options of each command, as a structure that checks them
ranks/      what a command of the same name runs on the hosts: a program that is one rank
scripts/    measure one part alone, with no fabric or their own: `make bench`, or `python bench/scripts/X.py`
harness/    what several of them use: worker processes, a plain bridge, traffic, processor time
"""
