# SPDX-License-Identifier: Apache-2.0
"""A fabric as a Mininet topology, by our own API and by Mininet's own command line:

    sudo mn --custom topo/leafspine.py --topo leafspine,2,2,8,save=lab.toml --switch softswitch --controller none
    sudo .venv/bin/netfold up lab.toml                         # in another terminal: the controller

Parameters are those of `netfold.fabric.generate.leafspine`: leaves, spines, hosts, rate=, loss=, seed=, engine=, ...
"""

from __future__ import annotations


def _find_netfold() -> None:
    """Make the packages in the checkout's .venv importable: `mn` runs this file under the system's Python."""
    import sys
    from importlib.util import find_spec
    from pathlib import Path

    if find_spec("netfold") is not None:
        return
    # mn compiles this file under its path without setting __file__
    checkout = Path(sys._getframe().f_code.co_filename).resolve().parent.parent
    ours = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = checkout / ".venv" / "lib" / ours / "site-packages"
    if not site.is_dir():
        raise SystemExit(
            f"mn runs under {ours}, and {site} does not exist. Either run `make setup PYTHON=/usr/bin/python3`, "
            "or use .venv/bin/netfold up --topo leafspine,2,2,8, which brings its own"
        )
    import site as sites

    sites.addsitedir(str(site))
    sys.prefix = str(checkout / ".venv")


_find_netfold()

from netfold.topo.network.switches import Bmv2Switch, SoftSwitch  # noqa: E402
from netfold.topo.network.topology import LeafSpine  # noqa: E402
from netfold.topo.network.wiring import FabricHost  # noqa: E402

topos = {"leafspine": LeafSpine}
switches = {"softswitch": SoftSwitch, "bmv2": Bmv2Switch}
hosts = {"fabric": FabricHost}
