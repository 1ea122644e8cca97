# SPDX-License-Identifier: Apache-2.0
"""`python -m netfold.controller.cli`: the command where no console script is installed."""

from netfold.controller.cli.app import main

main()
