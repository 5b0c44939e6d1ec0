"""The script that makes releases: its checks, its index and its hashes."""

import re
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path

import pytest
from extras import needed

from collectives import __version__

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "wheels"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="it needs the sources")

TODAY = date(2026, 11, 26)
CHANGES = (
    "# Changes\n\n## 1.2.0 (2026-11-26)\n\n- **New.** A call.\n\n## 1.1.0 (2026-01-01)\n\n- Old.\n"
)


@pytest.fixture
def release(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return pytest.importorskip("release")


def test_a_citation_names_the_version_of_the_package():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in text


def test_tag_package_and_changes_agree(release):
    assert release.version_of("v1.2.0", "1.2.0", CHANGES, TODAY) == "1.2.0"
    candidate = CHANGES.replace("1.2.0", "1.2.0rc1")
    assert release.version_of("v1.2.0rc1", "1.2.0rc1", candidate, TODAY) == "1.2.0rc1"


@pytest.mark.parametrize(
    ("tag", "version", "old", "new", "said"),
    [
        ("1.2.0", "1.2.0", "", "", "the tag is 1.2.0, and must be like v1.2.3"),
        ("v1.2", "1.2", "", "", "the tag is v1.2, and must be like v1.2.3"),
        ("v1.2.1", "1.2.0", "", "", "the tag is v1.2.1, and the package has the version 1.2.0"),
        ("v1.2.0", "1.2.0", "(2026-11-26)", "(unreleased)", r"begins with '1.2.0 \(unreleased\)'"),
        ("v1.2.0", "1.2.0", "2026-11-26", "2026-11-27", "after today, 2026-11-26"),
        ("v1.2.0", "1.2.0", "2026-11-26", "2026-13-01", "is not a date"),
        ("v1.2.0", "1.2.0", "## 1.2.0", "## 1.3.0", r"must with '1.2.0 \(2026-11-26\)'"),
        ("v1.2.0", "1.2.0", "- **New.** A call.\n", "", "has no entry for 1.2.0"),
        ("v1.2.0", "1.2.0", "## ", "", "begins with 'nothing'"),
    ],
)
def test_what_disagrees_ends_the_release(release, tag, version, old, new, said):
    with pytest.raises(SystemExit, match=said):
        release.version_of(tag, version, CHANGES.replace(old, new), TODAY)


def test_the_changes_of_the_sources_need_only_a_date(release):
    """The first heading is that of the version of the package, released or not."""
    text = (ROOT / "CHANGES.md").read_text(encoding="utf-8")
    version = release.current_version()
    dated = text.replace(f"## {version} (unreleased)", f"## {version} ({TODAY})", 1)
    assert release.version_of(f"v{version}", version, dated, date.max) == version


def test_the_recipe_for_conda_has_the_version_and_the_dependencies(release):
    recipe = (FOLDER / "conda" / "recipe.yaml").read_text()
    assert f'version: "{release.current_version()}"' in recipe
    needs = recipe.partition("  run:\n")[2].partition("\n\n")[0].replace(" >=", ">=")
    named = set(re.findall(r"- (\S+)", needs))
    assert named == {"python", "numpy", *needed(["main"])} - {"numpy>=1.23"}


def test_pip_installs_from_the_index_alone(release, tmp_path, monkeypatch):
    """An index has each project under its name; pip verifies the hash of a file."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    wheel = tmp_path / "some_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        info = "some_package-1.0.dist-info"
        file.writestr("some_package.py", "")
        file.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: some-package\nVersion: 1.0\n"
        )
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    address = release.index([wheel], tmp_path / "index")

    def download(name, to):
        words = ["-m", "pip", "--isolated", "download", "--no-cache-dir", "--index-url", address]
        words += ["-d", str(tmp_path / to), name]
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)

    done = download("Some.Package==1.0", "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()
    assert "No matching distribution" in download("numpy", "out").stderr, "another index was asked"
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("more.py", "")
    assert "DO NOT MATCH THE HASHES" in download("some-package", "again").stderr


def test_sha256sum_accepts_the_hashes(release, tmp_path):
    (tmp_path / "a.whl").write_bytes(b"a")
    (tmp_path / "b.tar.gz").write_bytes(b"b")
    release.write_hashes(tmp_path)
    check = ["sha256sum", "--check", "--strict", release.SUMS]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "a.whl: OK\nb.tar.gz: OK\n"
    (tmp_path / "a.whl").write_bytes(b"c")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1
