# SPDX-License-Identifier: Apache-2.0
"""What torch calls at the end of `import torch`, by the entry point of the group "torch.backends": from then on
``init_process_group("netfold")`` needs no import of ours.

Nothing of NetFold is imported before a program asks for its backend.  TORCH_DEVICE_BACKEND_AUTOLOAD=0 leaves it out.
"""

from __future__ import annotations

import re
from functools import wraps
from importlib import import_module
from typing import Any


def announce() -> None:
    """Has torch import ``netfold.torch`` as soon as a group of backend "netfold" is asked for."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    config = import_module("torch.distributed.distributed_c10d").BackendConfig
    reads = config.__init__

    @wraps(reads)
    def read(self: Any, asked: Any) -> None:
        if "netfold" in re.split("[:,]", str(asked).lower()) and not hasattr(dist.Backend, "NETFOLD"):
            import_module("netfold.torch")  # which registers the backend, and has its own check of what is asked for
            config.__init__(self, asked)
        else:
            reads(self, asked)

    config.__init__ = read
