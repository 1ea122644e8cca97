# SPDX-License-Identifier: Apache-2.0
"""A rank that runs examples of the documentation, one after the other, each in a namespace and a job of its own.

Its argument is a file with a JSON list of pairs: a name, which it prints when that program has ended, and the program.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

first = int(os.environ["MASTER_PORT"])
for number, (name, program) in enumerate(json.loads(Path(sys.argv[1]).read_text())):
    # A store of torch's at the port of the one before would be taken for that one by a rank that is faster.
    os.environ |= {"MASTER_PORT": str(first + number), "NETFOLD_JOB": f"example-{number}"}
    exec(compile(program, name, "exec"), {"__name__": "__main__"})
    print(name, flush=True)
