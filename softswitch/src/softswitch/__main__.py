# SPDX-License-Identifier: Apache-2.0
"""`python -m softswitch` is the `softswitch` command."""

from softswitch.cli import main

main()
