# SPDX-License-Identifier: Apache-2.0
"""The manifest for Kubernetes: its ranks are started here as the kubelet of each node would, and fold in a switch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import support
from netfold.rpc.tokens import TOKEN_VARIABLE
from netfold.testing import subnet
from support import needs
from support.hosts.torch import loopback_jobs

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "examples" / "kubernetes.yaml"
TOKEN = "0123456789abcdef" * 4
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    """The objects of the manifest by their kinds."""
    yaml = pytest.importorskip("yaml", reason=needs.reason("mkdocs"))
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text()) if each}


def environment(container: Mapping[str, Any], fields: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """A container's environment variables, from their values, the pod's fields, and the secret's keys."""
    found = {}
    for each in container["env"]:
        source = each.get("valueFrom", {})
        found[each["name"]] = (fields[source["fieldRef"]["fieldPath"]] if "fieldRef" in source else
                               secrets[source["secretKeyRef"]["key"]] if source else each["value"])
    return found


def test_the_ranks_of_the_manifest_fold(tmp_path: Path, objects: dict[str, dict[str, Any]]) -> None:
    """With the index and the node's address of each pod in the variables that it names, the example's sums are exact
    and come from the switch."""
    job = objects["Job"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    world, net, where = job["completions"], subnet(), f"unix:{tmp_path}/jobs"
    nodes = [f"{net}.{index + 1}" for index in range(world)]
    clean = {name: value for name, value in support.environment().items() if not name.startswith("NETFOLD_")}
    here = {"NETFOLD_CONTROLLER": where, "NETFOLD_ALGO": "innet"}
    with loopback_jobs(f"{net}.200", nodes, where) as jobs:
        pods = []
        for index, node in enumerate(nodes):
            said = environment(container, {INDEX: str(index), "status.hostIP": node}, {"token": TOKEN})
            assert said.pop("NETFOLD_CONTROLLER").endswith(":50050")
            assert said.pop("NETFOLD_CA").startswith(container["volumeMounts"][0]["mountPath"])
            assert said[TOKEN_VARIABLE] == TOKEN
            pods.append(subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / "allreduce.py")], stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, env=clean | said | here))
        try:
            ends = [pod.communicate(timeout=120)[0] for pod in pods]
        finally:
            for pod in pods:
                pod.kill()
                pod.wait()
        for rank, end in enumerate(ends):
            assert f"rank {rank} of {world}: exact; 400000 bytes fold in the network: " in end, end
        assert {join.address for join in jobs.joins.values()} == set(nodes)
        assert {join.job for join in jobs.joins.values()} == {objects["Job"]["metadata"]["name"]}


def test_the_parts_of_the_manifest_fit_each_other(objects: dict[str, dict[str, Any]]) -> None:
    """All ranks run at once, one a node on the node's own network, and rank 0 has the name that torch is told."""
    job, service = objects["Job"], objects["Service"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name = job["metadata"]["name"]
    said = environment(container, {INDEX: "0", "status.hostIP": "10.0.1.1"}, {"token": TOKEN})
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(said["WORLD_SIZE"])
    assert pod["restartPolicy"] == "Never"
    assert pod["hostNetwork"] is True
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"
    # the label that the Job gives its pods
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["metadata"]["name"] == pod["subdomain"]
    assert said["MASTER_ADDR"] == f"{name}-0.{pod['subdomain']}"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.needs("kubernetes")
def test_every_field_of_the_manifest_is_one_of_kubernetes(objects: dict[str, dict[str, Any]]) -> None:
    """Read into the models of Kubernetes' own client and written again it is the same: no field is misspelt, misplaced
    or of another type, and none that is required is missing."""
    from kubernetes import client

    api = client.ApiClient()
    for kind, model in {"Service": "V1Service", "Job": "V1Job"}.items():
        read = api.deserialize(json.dumps(objects[kind]), model, "application/json")
        assert api.sanitize_for_serialization(read) == objects[kind]
