# SPDX-License-Identifier: Apache-2.0
"""`python -m netfold.cli`: the command where no console script is installed."""

from netfold.cli.entry import netfold

netfold()
