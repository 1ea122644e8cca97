# SPDX-License-Identifier: Apache-2.0
"""The control plane: from a fabric file and joining ranks to table entries on P4Runtime switches.

    plans, pure          fabric  trees  routes  clos  paths  slots  dryrun
    entries, pure        entities  tables  reconcile  codec
    switches             pipeline  switch (one session)  target (kept at its desired state)
    services             rpc  jobs  operator
    the whole            controller  cli  show
"""
