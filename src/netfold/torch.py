# SPDX-License-Identifier: Apache-2.0
"""``import netfold.torch`` makes "netfold" a backend of torch.distributed; see ``netfold.host.torch``.

``python -m netfold.torch SCRIPT`` runs a script whose default process group is of that backend, and with ``--as gloo``
before it one whose own groups are (``launch``).
Raises ModuleNotFoundError, which names the extra, where PyTorch is not installed.
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError("netfold.torch needs PyTorch: pip install torch", name="torch")

from netfold.host.torch import *  # noqa: F403 (the names are listed there)
from netfold.host.torch import __all__ as __all__
from netfold.host.torch import register

register()

if __name__ == "__main__":
    import sys

    from netfold.host.torch import launch

    launch.run(sys.argv[1:])
