# SPDX-License-Identifier: Apache-2.0
"""BMv2's Python modules, for control planes that import them: bm_runtime, sswitch_runtime, bmpy_utils, runtime_CLI,
sswitch_CLI. Each is a few lines that take their names from this installation (`_softswitch` makes it importable)."""

from __future__ import annotations

_TYPES = '''import _softswitch  # noqa: F401
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException, TMessageType, TType
from thrift.transport import TTransport

from softswitch.thrift.structs import TYPES

_types = TYPES["{module}"]
globals().update({{name: getattr(_types, name) for name in _types.names}})
__all__ = ["TApplicationException", "TException", "TMessageType", "TProtocolException", "TTransport", "TType",
           *_types.names]
'''

_SERVICE = '''from .ttypes import *
from .ttypes import _types

Client = _types.Client
'''

_UTILS = '''import sys

import _softswitch  # noqa: F401
from softswitch.thrift.structs import TYPES
from softswitch.tools.cli.main import check_config, connect, read_config


def thrift_connect(thrift_ip, thrift_port, services, out=sys.stdout):
    return connect(thrift_ip, thrift_port, services, out)


def thrift_connect_standard(thrift_ip, thrift_port, out=sys.stdout):
    return connect(thrift_ip, thrift_port, [("standard", TYPES["standard"].Client)], out)[0]


def get_json_config(standard_client=None, json_path=None, out=sys.stdout):
    return read_config(standard_client, json_path, out)


def check_JSON_md5(client, json_src, out=sys.stdout):
    check_config(client, json_src, out)
'''

_RUNTIME_CLI = '''import _softswitch  # noqa: F401
from bm_runtime.simple_pre import SimplePre
from bm_runtime.simple_pre_lag import SimplePreLAG
from bm_runtime.standard import Standard
from bm_runtime.standard.ttypes import *
from softswitch.tools.cli import legacy
from softswitch.tools.cli.legacy import (
    PreType, RuntimeAPI, get_parser, load_json_config, load_json_str, reset_config, thrift_connect)
from softswitch.tools.cli.values import CommandError as UIn_Error


def main():
    legacy.main()


if __name__ == "__main__":
    main()
'''

_SSWITCH_CLI = '''import _softswitch  # noqa: F401
import runtime_CLI
from runtime_CLI import UIn_Error
from softswitch.tools.cli.legacy import SimpleSwitchAPI
from softswitch.tools.cli.main import main
from sswitch_runtime import SimpleSwitch
from sswitch_runtime.ttypes import *

if __name__ == "__main__":
    main()
'''


def _package(module: str, service: str) -> dict[str, str]:
    return {
        "__init__.py": f'__all__ = ["ttypes", "constants", "{service}"]\n',
        "constants.py": "from .ttypes import *\n",
        "ttypes.py": _TYPES.format(module=module),
        f"{service}.py": _SERVICE,
    }


MODULES: dict[str, str] = {
    "bm_runtime/__init__.py": "",
    **{f"bm_runtime/{module}/{name}": text
       for module, service in (("standard", "Standard"), ("simple_pre", "SimplePre"),
                               ("simple_pre_lag", "SimplePreLAG"))
       for name, text in _package(module, service).items()},
    **{f"sswitch_runtime/{name}": text for name, text in _package("simple_switch", "SimpleSwitch").items()},
    "bmpy_utils.py": _UTILS,
    "runtime_CLI.py": _RUNTIME_CLI,
    "sswitch_CLI.py": _SSWITCH_CLI,
}
"""Path below DIR/python -> text of the file."""
