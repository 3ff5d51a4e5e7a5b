"""The manifests for Kubernetes: valid by the schemas of `schemas/`, closed as SECURITY.md says, and able to go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from packaging.requirements import Requirement
from packaging.version import Version
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = Path(__file__).parent / "schemas"
FILES = sorted((ROOT / "deploy" / "kuberay").glob("*.yaml"))
DOCUMENTS = [
    pytest.param(document, id=f"{file.name}-{document['kind']}-{document['metadata']['name']}")
    for file in FILES
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]
RAY_KINDS = [one for one in DOCUMENTS if one.values[0]["apiVersion"] == "ray.io/v1"]


@cache
def schemas() -> tuple[dict[str, Any], Registry]:
    """Kind → its schema with the address that it is known by, and where references lead."""
    kinds: dict[str, Any] = {}
    resources = []
    for name in ("kubernetes.json", "kuberay.json"):
        schema = json.loads((SCHEMAS / name).read_text(encoding="utf-8"))
        resources.append((name, Resource(contents=schema, specification=DRAFT202012)))
        kinds |= {kind: f"{name}#/kinds/{kind.replace('/', '~1')}" for kind in schema["kinds"]}
    return kinds, Registry().with_resources(resources)


def faults(document: dict[str, Any]) -> list[str]:
    """What a document's schema finds, one line each."""
    kinds, registry = schemas()
    validator = Draft202012Validator({"$ref": kinds[f"{document['apiVersion']}/{document['kind']}"]}, registry=registry)
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]


def cluster_of(document: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = document["spec"]
    return spec["rayClusterSpec"] if document["kind"] == "RayJob" else spec


def groups(document: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = cluster_of(document)
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def templates(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every pod that a document makes."""
    yield from (group["template"] for group in groups(document))
    if document["kind"] == "RayJob":
        yield document["spec"]["submitterPodTemplate"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_document_is_valid_by_its_schema_and_none_is_a_secret(document: dict[str, Any]) -> None:
    assert document["kind"] != "Secret"
    assert faults(document) == []


@pytest.mark.parametrize("document", RAY_KINDS)
def test_a_pod_passes_the_restricted_pod_security_standard_with_a_read_only_root_and_holds_no_secret(
    document: dict[str, Any],
) -> None:
    for template in templates(document):
        pod = template["spec"]
        mounts = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert {"/tmp", "/home/meltpoint"} <= mounted, "Ray and the libraries write there"
            given = [entry["name"] for entry in container.get("env", []) if "value" in entry]
            assert not [name for name in given if re.search("PASSWORD|TOKEN|KEY|SECRET", name)]


@pytest.mark.parametrize("document", RAY_KINDS)
def test_ray_asks_for_a_token_and_is_of_the_version_that_the_image_has(document: dict[str, Any]) -> None:
    cluster = cluster_of(document)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = next(Requirement(line) for line in lines if line.startswith("ray=="))
    assert cluster["authOptions"] == {"mode": "token"}
    assert str(pinned.specifier) == f"=={cluster['rayVersion']}"
    assert Version(cluster["rayVersion"]) >= Version("2.52.0"), "the operator refuses tokens for an older one"


@pytest.mark.parametrize("document", RAY_KINDS)
def test_storage_and_encoders_are_claims_that_outlive_the_pods(document: dict[str, Any]) -> None:
    claims = {
        one.values[0]["metadata"]["name"] for one in DOCUMENTS if one.values[0]["kind"] == "PersistentVolumeClaim"
    }
    for group in groups(document):
        volumes = group["template"]["spec"]["volumes"]
        used = {
            one["name"]: one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one
        }
        assert used == {"runs": "meltpoint-runs", "huggingface": "meltpoint-huggingface"}
        assert set(used.values()) <= claims


@pytest.mark.parametrize("document", RAY_KINDS)
def test_trials_run_on_workers_alone_every_node_has_one_image_and_kueue_may_queue_it(document: dict[str, Any]) -> None:
    assert cluster_of(document)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert len({one["image"] for template in templates(document) for one in template["spec"]["containers"]}) == 1
    assert document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    if document["kind"] == "RayJob":
        assert document["spec"]["shutdownAfterJobFinishes"] is True, "KubeRay refuses to suspend one that is not"
        assert "clusterSelector" not in document["spec"], "KubeRay refuses backoffLimit beside it"


def test_a_job_is_tried_again_with_its_storage_and_mlflow_outside_the_pods() -> None:
    (job,) = (one.values[0] for one in RAY_KINDS if one.values[0]["kind"] == "RayJob")
    assert job["spec"]["backoffLimit"] >= 1
    mounts = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    storage = re.search(r"--storage (\S+)", job["spec"]["entrypoint"])
    assert storage is not None
    assert {"name": "runs", "mountPath": storage.group(1)} in mounts
    assert re.search(r"--tracking-uri https?://", job["spec"]["entrypoint"])
    assert "--address auto" in job["spec"]["entrypoint"]


def test_the_network_policy_selects_every_pod_of_ray_and_of_the_submitter() -> None:
    (policy,) = (one.values[0] for one in DOCUMENTS if one.values[0]["kind"] == "NetworkPolicy")
    wanted = policy["spec"]["podSelector"]["matchLabels"].items()
    for document in (one.values[0] for one in RAY_KINDS):
        assert all(wanted <= template["metadata"]["labels"].items() for template in templates(document))
