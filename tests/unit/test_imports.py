"""Who may import whom. Each outside thing has one door."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"proto", "gateway", "shardd", "supervisor", "pyspark_topics", "topics_client", "topics_server", "tests"}
ALLOWED = {
    "proto": {"proto"},
    "gateway": {"gateway", "proto"},
    "shardd": {"shardd", "proto"},
    "supervisor": {"supervisor", "proto"},
    "topics_server": {"topics_server", "supervisor"},
    "pyspark_topics": {"pyspark_topics"},
}
DOORS = {
    "zmq": {"proto/transport.py"},
    "mmap": {"shardd/disk.py", "pyspark_topics/logfile.py", "pyspark_topics/segment.py"},
    "quart": {"gateway/web.py"},
    "quart_trio": {"gateway/web.py"},
    "hypercorn": {"gateway/handover.py"},
    "opentelemetry": set(),  # gateway/tracing.py alone has it, if it is there, by import_module
    "httptools": {"gateway/head.py"},
    "wsproto": {"gateway/websocket.py"},
    "subprocess": {"supervisor/child.py", "supervisor/keys.py", "supervisor/offline.py"},
    "typer": {
        "supervisor/cli.py",
        "supervisor/cli_backup.py",
        "supervisor/cli_salvage.py",
        "supervisor/cli_config.py",
        "supervisor/cli_deploy.py",
        "supervisor/cli_status.py",
        "supervisor/cli_transfer.py",
        "supervisor/endpoint.py",
        "supervisor/rog_client.py",
        "supervisor/terminal.py",
        "supervisor/walrus_client.py",
    },
    "rich": {"supervisor/cli_status.py", "supervisor/status.py", "supervisor/terminal.py", "supervisor/top.py"},
    "ctypes": {"proto/orphan.py", "proto/secrecy.py", "proto/memory.py"},
    "multiprocessing": set(),
    "asyncio": set(),
}
"""Outside thing → the modules that may import it."""


def modules() -> Iterator[tuple[str, Path]]:
    for package in ALLOWED:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield package, path


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize(("package", "path"), list(modules()), ids=lambda value: str(value).removeprefix(str(ROOT)))
def test_packages_import_only_what_they_may(package: str, path: Path) -> None:
    assert imported(path) & OURS <= ALLOWED[package]


@pytest.mark.parametrize("thing", DOORS)
def test_each_outside_thing_has_its_door(thing: str) -> None:
    users = {str(path.relative_to(ROOT)) for _, path in modules() if thing in imported(path)}
    assert users <= DOORS[thing]


def test_only_the_disk_opens_data_files() -> None:
    for path in (ROOT / "shardd").glob("*.py"):
        if path.name != "disk.py":
            calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            assert not any(
                isinstance(call, ast.Attribute)
                and call.attr in {"read_bytes", "read_text", "write_bytes", "write_text", "touch", "mkdir"}
                for call in calls
            ), path
            assert not any(isinstance(call, ast.Name) and call.id == "open" for call in calls), path
            assert not any(
                isinstance(call, ast.Attribute)
                and isinstance(call.value, ast.Name)
                and call.value.id == "os"
                and call.attr in {"open", "write", "rename", "replace", "unlink", "fsync"}
                for call in calls
            ), path
