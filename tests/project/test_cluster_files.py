"""What pods of Kubernetes are made from: a manifest, an image, and what the manual says of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "examples" / "cluster"
PAGE = (ROOT / "docs" / "howto" / "kubernetes.md").read_text(encoding="utf-8")


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


def test_the_page_names_all_files() -> None:
    for file in FILES.iterdir():
        assert f"`{file.name}`" in PAGE or file.suffix == ".dockerignore"
