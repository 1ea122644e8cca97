# SPDX-License-Identifier: Apache-2.0
"""A rank that is a fork of torchrun's process and runs a module as ``python -m`` does.

    torchrun --start-method fork --run-path rank_module.py MODULE [ARGUMENT ...]
"""

import os
import runpy
import sys

del sys.argv[0]
sys.path.insert(0, os.getcwd())
runpy._run_module_as_main(sys.argv[0])  # type: ignore[attr-defined]  # what python -m calls
