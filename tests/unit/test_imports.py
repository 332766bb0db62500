"""Import rules: which package may import which. Each outside thing has one door."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {
    "proto",
    "gateway",
    "shardd",
    "supervisor",
    "pyspark_topics",
    "topics_client",
    "topics_history",
    "topics_server",
    "tests",
}
ALLOWED = {
    "proto": {"proto"},
    "gateway": {"gateway", "proto"},
    "shardd": {"shardd", "proto"},
    "supervisor": {"supervisor", "proto", "topics_client", "pyspark_topics"},
    "topics_server": {"topics_server", "supervisor"},
    "pyspark_topics": {"pyspark_topics"},
    "packages/topics-client/topics_client": {"topics_client"},
    "packages/topics-history/topics_history": {"topics_history"},
}
DOORS = {
    "zmq": {"proto/ipc/transport.py", "proto/ipc/remote.py"},
    "mmap": {"proto/ipc/gateway_page.py", "proto/ipc/in_hand.py"},
    "quart": {"gateway/server/pages.py"},
    "quart_trio": {"gateway/server/pages.py"},
    "hypercorn": {"gateway/server/hypercorn_bridge.py"},
    "h2": {"gateway/server/http2_server.py"},
    "opentelemetry": set(),  # only gateway/observe/tracing.py uses it, if it is installed, through import_module
    "httptools": {"gateway/http/request_head.py"},
    "wsproto": {"gateway/http/websocket.py"},
    "prometheus_client": {"gateway/observe/families.py"},
    "pydantic": set(),
    "subprocess": {"supervisor/process/forks.py", "supervisor/config/keys.py", "supervisor/backup/offline.py"},
    "typer": {
        "supervisor/cli/commands/backup.py",
        "supervisor/cli/commands/bench.py",
        "supervisor/cli/commands/completion.py",
        "supervisor/cli/commands/config.py",
        "supervisor/cli/commands/context.py",
        "supervisor/cli/commands/cursors.py",
        "supervisor/cli/commands/deploy.py",
        "supervisor/cli/commands/doctor.py",
        "supervisor/cli/commands/keys.py",
        "supervisor/cli/commands/lake.py",
        "supervisor/cli/commands/own_service.py",
        "supervisor/cli/commands/offline.py",
        "supervisor/cli/commands/publish.py",
        "supervisor/cli/commands/queues.py",
        "supervisor/cli/commands/read.py",
        "supervisor/cli/commands/reading.py",
        "supervisor/cli/commands/replica.py",
        "supervisor/cli/commands/routers.py",
        "supervisor/cli/commands/serve.py",
        "supervisor/cli/commands/status.py",
        "supervisor/cli/commands/topics.py",
        "supervisor/cli/commands/transfer.py",
        "supervisor/cli/commands/version.py",
        "supervisor/cli/commands/work.py",
        "supervisor/cli/completers.py",
        "supervisor/cli/endpoint.py",
        "supervisor/cli/main.py",
        "supervisor/cli/plain_values.py",
        "supervisor/cli/reference.py",
        "supervisor/cli/remote.py",
        "supervisor/cli/terminal.py",
        "supervisor/client/rog_client.py",
        "supervisor/client/walrus_client.py",
    },
    "rich": {
        "supervisor/cli/commands/status.py",
        "supervisor/cli/status_view.py",
        "supervisor/cli/terminal.py",
        "supervisor/cli/top_view.py",
    },
    "ctypes": {"proto/process/orphan.py", "proto/process/core_dumps.py", "proto/process/allocator.py"},
    "multiprocessing": set(),
    "asyncio": set(),
    "deltalake": {"pyspark_topics/lake/deltars.py"},
    "obstore": {"shardd/replication/store.py"},
}
"""Outside thing → the modules that may import it."""
FOLDERS: dict[str, dict[str, set[str]]] = {
    "gateway": {
        "errors": set(),
        "admission": set(),
        "api": {"admission", "contract", "http", "observe", "shards", "streams"},
        "contract": {"http"},
        "http": {"errors", "admission"},
        "observe": {"contract", "http", "shards"},
        "process": {"admission", "api", "contract", "observe", "protocols", "server", "shards"},
        "protocols": {"errors", "admission", "shards"},
        "server": {"admission", "api", "contract", "http"},
        "shards": {"http"},
        "streams": {"admission", "contract", "http", "shards"},
    },
    "shardd": {
        "errors": set(),
        "assembly": {
            "changes",
            "checkpoint",
            "checkpoint_control",
            "clock",
            "delivery",
            "log_follower",
            "operations",
            "queues",
            "recovery",
            "restoring",
            "routers",
            "storage",
            "subscribers",
            "topic",
        },
        "changes": {"clock", "frames", "storage", "topic"},
        "checkpoint": {"clock", "recovery", "storage", "topic"},
        "checkpoint_control": {"changes", "checkpoint", "log_follower", "recovery", "restoring", "routers", "storage"},
        "clock": set(),
        "delivery": {"clock", "storage", "topic"},
        "frames": {"topic"},
        "handlers": {"assembly", "changes", "checkpoint", "inspect", "operations", "queues", "routers", "topic"},
        "inspect": {"assembly", "changes", "checkpoint", "delivery", "leaders", "storage", "topic"},
        "leaders": set(),
        "log_follower": {"delivery", "leaders", "routers", "storage"},
        "offline": {
            "changes",
            "checkpoint",
            "clock",
            "recovery",
            "replication",
            "routers",
            "shard",
            "storage",
            "topic",
        },
        "operations": {"changes", "delivery", "frames", "storage", "topic"},
        "process": {
            "errors",
            "changes",
            "clock",
            "delivery",
            "recovery",
            "replication",
            "roster",
            "routers",
            "shard",
            "standby",
            "storage",
            "topic",
        },
        "queues": {"changes", "delivery", "frames", "storage", "topic"},
        "recovery": {"errors", "clock", "frames", "storage", "topic"},
        "replication": {"clock", "errors", "leaders", "roster", "storage"},
        "routers": {"changes", "clock", "frames", "storage", "topic"},
        "roster": set(),
        "restoring": {"changes", "recovery", "routers", "topic"},
        "shard": {
            "assembly",
            "changes",
            "checkpoint",
            "clock",
            "delivery",
            "handlers",
            "recovery",
            "storage",
            "topic",
        },
        "standby": {"checkpoint", "clock", "recovery", "replication", "shard", "storage"},
        "storage": {"errors", "clock"},
        "subscribers": {"delivery", "queues", "routers", "topic"},
        "topic": {"storage"},
    },
    "proto": {
        "errors": set(),
        "api": {"model"},
        "format": {"errors"},
        "ipc": {"errors", "model", "process"},
        "model": {"errors"},
        "process": {"model"},
        "wire": {"errors", "model"},
    },
    "supervisor": {
        "errors": set(),
        "backup": {"errors", "process"},
        "cli": {"errors", "backup", "client", "config", "process"},
        "client": {"errors"},
        "config": {"errors"},
        "process": {"errors", "config"},
    },
}
"""Package → folder, or module beside the folders → the ones it imports. There are no cycles."""


def modules() -> Iterator[tuple[str, Path]]:
    for package in ALLOWED:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield package, path


@cache
def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def units(package: str) -> dict[str, set[str]]:
    """The actual imports of each folder of a package, and of each module beside them, among each other."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        unit = path.relative_to(ROOT / package).with_suffix("").parts[0]
        if unit != "__init__":
            names = {name.split(".")[1] for name in modules_imported(path) if name.startswith(f"{package}.")}
            found.setdefault(unit, set()).update(names - {unit})
    return found


@cache
def modules_imported(path: Path) -> set[str]:
    """Dotted names; of `from a import b` both `a` and `a.b`, as `b` may be a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, path
            package = (ROOT / node.module.replace(".", "/")).is_dir()
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if package else {node.module}
    return names - {f"{name}.__version__" for name in ALLOWED}


@pytest.mark.parametrize("package", FOLDERS)
def test_folders_import_those_of_the_table_and_no_others(package: str) -> None:
    assert units(package) == FOLDERS[package]


@pytest.mark.parametrize("package", FOLDERS)
def test_the_table_has_no_circles(package: str) -> None:
    tuple(TopologicalSorter(FOLDERS[package]).static_order())  # raises CycleError, which names the cycle


def test_no_modules_import_each_other_in_a_circle() -> None:
    """An import for types only counts too: a reader follows it as any other."""
    names = {".".join(path.relative_to((ROOT / of).parent).with_suffix("").parts): path for of, path in modules()}
    graph = {name: modules_imported(path) & names.keys() for name, path in names.items()}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle


@pytest.mark.parametrize("package", [*FOLDERS, "topics_server"])
def test_every_folder_says_what_it_owns(package: str) -> None:
    """A folder without an `__init__.py` would not be in the wheel either."""
    for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_proto_reads_and_writes_in_five_modules_and_in_its_folder_of_the_process() -> None:
    doors = {"io", "mmap", "os", "pathlib", "select", "shutil", "socket", "subprocess", "tempfile", "urllib", "zmq"}
    found = {path.relative_to(ROOT) for package, path in modules() if package == "proto" and imported(path) & doors}
    outside = {str(path) for path in found if not path.is_relative_to("proto/process")}
    doors_of_ipc = {"transport.py", "remote.py", "control_link.py", "gateway_page.py", "in_hand.py"}
    assert outside == {f"proto/ipc/{name}" for name in doors_of_ipc}


@pytest.mark.parametrize(("package", "path"), list(modules()), ids=lambda value: str(value).removeprefix(str(ROOT)))
def test_packages_import_only_what_they_may(package: str, path: Path) -> None:
    assert imported(path) & OURS <= ALLOWED[package]


@pytest.mark.parametrize("thing", DOORS)
def test_each_outside_thing_has_its_door(thing: str) -> None:
    users = {str(path.relative_to(ROOT)) for _, path in modules() if thing in imported(path)}
    assert users <= DOORS[thing]


def test_only_the_wait_uses_inner_parts_of_trio() -> None:
    users = {
        str(path.relative_to(ROOT))
        for _, path in modules()
        if any(name.startswith("trio._") for name in modules_imported(path)) or "trio._" in path.read_text()
    }
    assert users == {"proto/process/waiting.py"}


DISK = ROOT / "shardd" / "storage" / "disk.py"
_OF_PATHS = re.compile(
    "chmod|exists|glob|hardlink_to|is_dir|is_file|iterdir|lchmod|lstat|mkdir|read_bytes|read_text|rename|rglob|rmdir|stat"
    "|symlink_to|touch|unlink|write_bytes|write_text"
)
"""Methods of `Path` that ask the file system, and have names that nothing else has."""
_DISK = re.compile(r"(?:.*[._])?disk")
_OS = frozenset(("_exit", "environ", "urandom"))
"""What a shard may use of `os` besides its disk: none of it is a file."""
_FILES = frozenset(("fcntl", "glob", "io", "shutil", "tempfile"))
"""Modules of the standard library that open, copy or remove files."""


def files_touched(source: str) -> list[str]:
    """What a module does to files by itself, without the disk."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in _FILES]
        elif isinstance(node, ast.ImportFrom):
            in_memory = node.module == "io" and {alias.name for alias in node.names} <= {"BytesIO"}
            found += [node.module or ""] if node.module in _FILES | {"os"} and not in_memory else []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found += [f"os.{node.attr}"] if node.attr not in _OS else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found += ["open"] if node.func.id == "open" else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of, name = ast.unparse(node.func.value), node.func.attr
            opens = name == "open" and not _DISK.fullmatch(of)
            # `Path.replace` has one argument; that of texts, Structs and the disk has more.
            if opens or _OF_PATHS.fullmatch(name) or (name == "replace" and len(node.args) + len(node.keywords) == 1):
                found.append(f"{of}.{name}")
    return found


def test_only_the_disk_opens_data_files() -> None:
    for path in sorted((ROOT / "shardd").rglob("*.py")):
        if path != DISK:
            assert files_touched(path.read_text()) == [], path
    assert files_touched(DISK.read_text())


@pytest.mark.parametrize(
    "call",
    [
        "path.unlink()",
        "path.rename(target)",
        "path.replace(target)",
        "(folder / name).open()",
        "path.write_bytes(b'')",
        "os.remove(path)",
        "os.mkdir(path)",
        "os.pwrite(fd, b'', 0)",
        "os.truncate(path, 0)",
        "os.fdatasync(fd)",
        "open(path)",
        "import shutil",
        "from os import unlink",
        "from io import BytesIO, open",
        "from tempfile import TemporaryFile",
    ],
)
def test_each_way_to_a_file_is_seen(call: str) -> None:
    assert files_touched(call)


@pytest.mark.parametrize(
    "call",
    [
        "self._disk.open(path)",
        "replace(text.replace(a, b), c=1)",
        "os.urandom(8)",
        "file.write(b)",
        "from io import BytesIO",
    ],
)
def test_the_disk_and_what_is_no_file_are_passed_over(call: str) -> None:
    assert files_touched(call) == []
