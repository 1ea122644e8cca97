# SPDX-License-Identifier: Apache-2.0
"""Why Thrift cannot be served."""


class ThriftError(Exception):
    """The Thrift services cannot be served; the message says why, and what to do.

    Remedy: `pip install thrift`, or free the port that --thrift-port names; without that option no Thrift is served.
    """
