"""What the repository says of itself in several places is the same in all of them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import proto

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "gateway",
    "shardd",
    "supervisor",
    "proto",
    "topics_server",
    "pyspark_topics",
    "packages/topics-client/topics_client",
    "packages/topics-history/topics_history",
)


def project(path: str) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / path).read_text())["project"]
    return found


def test_the_version_is_the_same_everywhere_and_in_the_changelog() -> None:
    assert project("pyproject.toml")["dynamic"] == ["version"]  # taken from proto.__version__
    assert project("packages/pyspark-topics/pyproject.toml")["version"] == proto.__version__
    assert project("packages/topics-client/pyproject.toml")["version"] == proto.__version__
    assert project("packages/topics-history/pyproject.toml")["version"] == proto.__version__
    assert json.loads((ROOT / "packages/topics-client-ts/package.json").read_text())["version"] == proto.__version__
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(proto.__version__)} - \d{{4}}-\d\d-\d\d", sections[1])


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_hosted_ci_and_our_own_run_make_test() -> None:
    assert re.search(
        r"^ +- run: sudo --preserve-env=PATH,JAVA_HOME,CI make test$",
        (ROOT / ".github/workflows/ci.yml").read_text(),
        re.MULTILINE,
    )
    assert "exec make test" in (ROOT / ".ci" / "run").read_text()


def test_hooks_before_a_commit_need_no_network() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (\S+)", text) == ["local"]
    assert set(re.findall(r"language: (\S+)", text)) == {"system"}
    for script in re.findall(r"tests/\S+\.py", text):
        assert (ROOT / script).is_file()


def test_the_lock_of_npm_has_a_digest_for_each_package_and_no_address_of_a_registry() -> None:
    locked = json.loads((ROOT / "packages/topics-client-ts/package-lock.json").read_text())
    for name, package in locked["packages"].items():
        if name:
            assert package["integrity"].startswith("sha512-"), name
            assert "resolved" not in package, name
            assert package["dev"], f"{name} is needed to run the client"
    assert locked["packages"][""]["version"] == proto.__version__
    assert (ROOT / "packages/topics-client-ts/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
