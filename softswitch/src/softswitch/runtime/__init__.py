# SPDX-License-Identifier: Apache-2.0
"""The runtime in C that a compiled program is linked with.

Of Python there is what every other room may need before it imports anything else: the version, deferred imports, the
wait for the signals that end a switch, and what bounds the clients of servers (http_server.py, connections.py).
"""
