# SPDX-License-Identifier: Apache-2.0
"""The function that torch calls at the end of `import torch`, through the entry point group "torch.backends". It makes
``init_process_group("netfold")`` work without an import of netfold.

NetFold is imported only when a program asks for its backend.  TORCH_DEVICE_BACKEND_AUTOLOAD=0 disables the entry
point.
"""

from __future__ import annotations

import re
from functools import wraps
from importlib import import_module
from typing import Any


def announce() -> None:
    """Makes torch import ``netfold.torch`` as soon as a program asks for a group of backend "netfold"."""
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
