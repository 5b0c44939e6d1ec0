"""The files for pods of Kubernetes: a manifest, an image, and the page of the manual."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import PATIENCE

from collectives.process import environment

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "examples" / "cluster"
PAGE = (ROOT / "docs" / "hpc" / "kubernetes.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    """The specification of the job."""
    yaml = pytest.importorskip("yaml")  # the manual's tools have it
    job = yaml.safe_load((FILES / "mpijob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert f"kubectl logs -f job/{job['metadata']['name']}-launcher" in PAGE
    found: dict[str, Any] = job["spec"]
    return found


def container(spec: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = spec["mpiReplicaSpecs"][kind]["template"]["spec"]["containers"]
    return dict(found)


def test_the_launcher_starts_a_rank_for_each_slot(spec: dict[str, Any]) -> None:
    command = container(spec, "Launcher")["command"]
    workers = spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    assert command[:3] == ["collectives", "run", "-n"]
    assert int(command[3]) == workers * spec["slotsPerWorker"]
    assert command[4:] == ["-m", "collectives", "doctor"]
    assert float(container(spec, "Worker")["resources"]["limits"]["cpu"]) >= spec["slotsPerWorker"]


def test_the_image_fits_the_job(spec: dict[str, Any]) -> None:
    image = (FILES / "Dockerfile").read_text(encoding="utf-8")
    server = dict(
        line.split(maxsplit=1)
        for line in (FILES / "sshd_config").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    for kind in ("Launcher", "Worker"):
        each = container(spec, kind)
        assert each["image"] == "collectives"
        assert f"USER {each['securityContext']['runAsUser']}" in image
    port = container(spec, "Worker")["readinessProbe"]["tcpSocket"]["port"]
    assert server["Port"] == str(port)
    assert f"Port {port}" in (FILES / "ssh_config").read_text(encoding="utf-8")
    assert server["HostKey"].startswith(spec["sshAuthMountPath"])
    assert server["AuthorizedKeysFile"].startswith(spec["sshAuthMountPath"])
    assert spec["mpiImplementation"] == "MPICH"
    assert '"mpich' in image
    for name in re.findall(r"COPY (examples/\S+)", image):
        assert (ROOT / name).is_file(), name


@pytest.fixture(scope="module")
def indexed() -> tuple[dict[str, Any], dict[str, Any]]:
    """The service and the job without the operator."""
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((FILES / "job.yaml").read_text(encoding="utf-8"))
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    return service, job


def values(job: dict[str, Any]) -> dict[str, Any]:
    """The variables of the container, as they stand in the manifest."""
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in found["env"]}


def test_pods_find_rank_0_by_the_service(indexed: tuple[dict[str, Any], dict[str, Any]]) -> None:
    service, job = indexed
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]  # rank 0 is awaited while it starts
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    found = values(job)
    assert str(spec["completions"]) == str(spec["parallelism"]) == found["COLLECTIVES_SIZE"]
    place = found["COLLECTIVES_RENDEZVOUS"]
    assert place.startswith(f"first:{name}-0.{service['metadata']['name']}:")
    assert f"`{place}`" in PAGE
    key = found["COLLECTIVES_SECRET"]["secretKeyRef"]
    assert f"kubectl create secret generic {key['name']} --from-literal={key['key']}=" in PAGE
    assert f"kubectl logs -l batch.kubernetes.io/job-name={name}" in PAGE


@pytest.mark.any_mpi
def test_the_variables_of_the_job_make_one_job(
    indexed: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    _, job = indexed
    (container,) = job["spec"]["template"]["spec"]["containers"]
    found, size = values(job), job["spec"]["completions"]
    with socket.create_server(("localhost", 0)) as probe:
        port = probe.getsockname()[1]
    found["COLLECTIVES_RENDEZVOUS"] = f"first:localhost:{port}"  # instead of Kubernetes' names
    found["COLLECTIVES_SECRET"] = secrets.token_hex(32)
    index = {
        "fieldRef": {
            "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        }
    }
    assert found.pop("COLLECTIVES_RANK") == index
    assert found.keys() < environment.VARIABLES.keys()
    others = {name: value for name, value in os.environ.items() if name not in found}
    ranks = [
        subprocess.Popen(
            [sys.executable, *container["command"][1:]],
            env={**others, **found, "COLLECTIVES_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        for rank, each in enumerate(ranks):
            out, err = each.communicate(timeout=PATIENCE)
            assert (each.returncode, err) == (0, "")
            assert out == f"rank {rank} of {size}: {size * (size + 1) // 2}, by shm\n"
    finally:
        for each in ranks:
            each.kill()


def test_the_page_names_all_files() -> None:
    for file in FILES.iterdir():
        assert f"`{file.name}`" in PAGE or file.suffix == ".dockerignore"
