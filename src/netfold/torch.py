# SPDX-License-Identifier: Apache-2.0
"""``import netfold.torch`` makes "netfold" a backend of torch.distributed; see ``netfold.host.torch``."""

from netfold.host.torch import *  # noqa: F403 (the names are listed there)
from netfold.host.torch import __all__ as __all__
from netfold.host.torch import register

register()
