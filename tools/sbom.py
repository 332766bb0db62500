"""List of parts (SBOM) of the server, as CycloneDX 1.6: python tools/sbom.py DIRECTORY

It has the packages of `requirements.lock`, which are always installed, those of `locks/optional.lock`, which extras
bring, and the scripts of others that are in the wheel. Versions, digests and what needs what are from the locks,
licences from `locks/licences.toml`: the same checkout and SOURCE_DATE_EPOCH give the same bytes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import locks

OURS = "topics-server"
VENDORED = [("lit-html", "3.3.3", "BSD-3-Clause")]
"""npm packages of which a copy is in the wheel."""


def version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (locks.ROOT / "proto/__init__.py").read_text(), re.MULTILINE)
    assert found
    return found[1]


def licences() -> dict[str, str]:
    """The licence of each locked package, as an SPDX expression."""
    found: dict[str, str] = tomllib.loads((locks.ROOT / "locks/licences.toml").read_text())["licences"]
    return found


def component(kind: str, purl: str, licence: str, **more: Any) -> dict[str, Any]:
    name, _, number = purl.partition("/")[2].partition("@")
    about = {"type": kind, "bom-ref": purl, "name": name, "version": number, "purl": purl}
    return {**about, "licenses": [{"expression": licence}], **more}


def _purl(pin: locks.Pin) -> str:
    return f"pkg:pypi/{pin.name}@{pin.version}"


def bom(made: datetime) -> dict[str, Any]:
    """The list, as of a time in UTC."""
    by_name = {one.name: locks.read(one.file) for one in locks.sets()}
    required = {_purl(pin) for pin in by_name["run"]}
    pins = {_purl(pin): pin for pin in [*by_name["run"], *by_name["optional"]]}
    licence_of = licences()
    parts = [
        component(
            "library",
            purl,
            licence_of[pin.name],
            scope="required" if purl in required else "optional",
            externalReferences=[_files(purl, pin)],
        )
        for purl, pin in sorted(pins.items())
    ]
    vendored = [component("library", f"pkg:npm/{n}@{v}", licence, scope="required") for n, v, licence in VENDORED]
    server = component("application", f"pkg:pypi/{OURS}@{version()}", "Apache-2.0")
    found = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": made.isoformat().replace("+00:00", "Z"), "component": server},
        "components": parts + vendored,
        "dependencies": _dependencies(server["bom-ref"], pins, [each["bom-ref"] for each in vendored]),
    }
    # The number of a list is its content's.
    return {"serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(found))}", **found}


def _files(purl: str, pin: locks.Pin) -> dict[str, Any]:
    digests = [{"alg": "SHA-256", "content": each} for each in sorted(pin.hashes)]
    return {"type": "distribution", "url": purl, "comment": "each file of this version", "hashes": digests}


def _dependencies(server: str, pins: dict[str, locks.Pin], vendored: list[str]) -> list[dict[str, Any]]:
    needs: dict[str, set[str]] = {server: set(vendored)} | {purl: set() for purl in pins}
    named: dict[str, list[str]] = {}
    for purl, pin in pins.items():
        named.setdefault(pin.name, []).append(purl)
    for purl, pin in pins.items():
        for needing in pin.via:
            for each in [server] if needing.endswith(")") else named[needing.partition("[")[0]]:
                needs[each].add(purl)
    return [{"ref": purl, "dependsOn": sorted(needed)} for purl, needed in sorted(needs.items())]


def main(directory: Path) -> None:
    made = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    file = directory / f"{OURS}-{version()}.cdx.json"
    file.write_text(json.dumps(bom(made), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
