"""Claims about what `make dist` builds, in an environment of its own and in one with packages of the same names.

The tests download the back-end that builds, and nothing else: the dependencies are those of the test run. Only the
test of an empty environment downloads these, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import locks
from tests.support.programs import leave_out
from tests.support.service import until

ROOT = Path(__file__).parents[2]
NOT_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "node_modules", "dist", "site", "topics-data")


def run(*command: str | Path, status: int = 0, cwd: Path | None = None, **environment: str) -> tuple[str, str]:
    """Run a command; return standard output and error."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=cwd,
        env={**kept, **environment},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def dist(to: Path, checkout: Path = ROOT) -> dict[str, Path]:
    """What `make dist` builds, by what it is of."""
    run(checkout / "tools" / "dist.sh", sys.executable, to)
    names = {
        "server": "topics_server",
        "client": "topics_client",
        "spark": "pyspark_topics",
        "history": "topics_history",
    }
    kinds = {kind: f"{name}-*.whl" for kind, name in names.items()}
    kinds |= {f"{kind}, source": f"{name}-*.tar.gz" for kind, name in names.items()}
    kinds |= {"npm": "*.tgz", "parts": "*.cdx.json", "digests": "SHA256SUMS"}
    found = {kind: path for kind, pattern in kinds.items() for path in to.glob(pattern)}
    assert set(to.iterdir()) == set(found.values())
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return dist(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheels(built: dict[str, Path]) -> dict[str, Path]:
    """The wheels of all projects in the checkout."""
    return {kind: path for kind, path in built.items() if path.suffix == ".whl"}


EACH = pytest.mark.parametrize(
    ("wheel", "packages"),
    [
        ("server", ("gateway", "shardd", "supervisor", "proto", "topics_server")),
        ("spark", ("pyspark_topics",)),
        ("client", ("topics_client",)),
        ("history", ("topics_history",)),
    ],
)


@EACH
def test_the_packages_of_a_wheel_say_that_they_are_typed(
    wheels: dict[str, Path], wheel: str, packages: tuple[str, ...]
) -> None:
    names = zipfile.ZipFile(wheels[wheel]).namelist()
    assert {f"{package}/py.typed" for package in packages} <= set(names)


@EACH
def test_a_wheel_has_nothing_besides_its_packages(
    wheels: dict[str, Path], wheel: str, packages: tuple[str, ...]
) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheels[wheel]).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(packages)


def another_checkout(there: Path) -> Path:
    """The same sources elsewhere, with other times, of the same commit."""
    shutil.copytree(ROOT, there, ignore=NOT_SOURCES, copy_function=shutil.copy)
    client = Path("packages/topics-client-ts")
    if (ROOT / client / "node_modules").is_dir():
        (there / client / "node_modules").symlink_to(ROOT / client / "node_modules")
        os.utime(there / client / "package-lock.json", (0, 0))  # older than what is installed from it
    if (ROOT / ".git").exists():
        made = run("git", "-C", ROOT, "log", "-1", "--format=%ct")[0].strip()
        run("git", "init", "--quiet", there)
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        when = {"GIT_COMMITTER_DATE": f"{made} +0000"}
        run("git", *author, "-C", there, "commit", "--quiet", "--allow-empty", "-m", "everything", **when)
    return there


def test_the_same_sources_are_built_to_the_same_bytes(built: dict[str, Path], tmp_path: Path) -> None:
    """In another directory, at another time, by a user with another mask of file modes."""
    checkout = another_checkout(tmp_path / "somewhere" / "else")
    mask = os.umask(0o077)
    try:
        again = dist(tmp_path / "again", checkout)
    finally:
        os.umask(mask)
    assert {kind: path.name for kind, path in again.items()} == {kind: path.name for kind, path in built.items()}
    for kind, path in again.items():
        assert path.read_bytes() == built[kind].read_bytes(), f"{kind}: another build has other bytes"


def test_a_source_distribution_has_the_time_of_the_commit_and_no_owner(built: dict[str, Path]) -> None:
    for kind in ("server", "client", "spark", "history"):
        with tarfile.open(built[f"{kind}, source"]) as archive:
            members = archive.getmembers()
        names = [member.name for member in members]
        assert names == sorted(names)
        assert not [name for name in names if name.startswith("/") or ".." in name.split("/")]
        assert {(member.mtime, member.uid, member.gid, member.uname) for member in members} == {
            (members[0].mtime, 0, 0, "")
        }


def test_the_digests_are_those_of_the_files(built: dict[str, Path]) -> None:
    said = run("sha256sum", "--check", "--strict", built["digests"].name, cwd=built["digests"].parent)[0]
    assert said.count(": OK\n") == len(built) - 1


def test_the_list_of_parts_is_that_of_the_wheel(built: dict[str, Path]) -> None:
    found = json.loads(built["parts"].read_text())
    about = found["metadata"]["component"]
    assert built["server"].name.startswith(f"topics_server-{about['version']}-")
    names = {each["name"] for each in found["components"]}
    metadata = zipfile.ZipFile(built["server"]).read(f"topics_server-{about['version']}.dist-info/METADATA").decode()
    required = re.findall(r"^Requires-Dist: ([\w.-]+)(?![^\n]*extra)", metadata, re.MULTILINE)
    assert len(required) > 10
    assert set(required) <= names


def test_the_wheel_has_every_file_of_its_packages(wheels: dict[str, Path]) -> None:
    """Modules are found by themselves; a file of another kind, such as the status page, must be named as data."""
    packages = ("gateway", "shardd", "supervisor", "proto", "topics_server")
    files = {str(path.relative_to(ROOT)) for name in packages for path in (ROOT / name).rglob("*.*")}
    files = {name for name in files if "__pycache__" not in name}
    assert "gateway/server/status_page.html" in files
    assert "gateway/server/reference/reference.js" in files
    assert files <= set(zipfile.ZipFile(wheels["server"]).namelist())


@dataclass(frozen=True)
class Environment:
    top: Path
    site: Path

    @property
    def topics(self) -> Path:
        return self.top / "bin" / "topics"

    def install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.top / "bin" / "python", "--disable-pip-version-check"]
        run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", wheel)

    def plant(self, distribution: str, files: dict[str, str]) -> None:
        """Install another distribution, as pip would have left it."""
        for name, content in files.items():
            (self.site / name).parent.mkdir(exist_ok=True)
            (self.site / name).write_text(content)
        info = self.site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))


@pytest.fixture
def fresh(tmp_path: Path) -> Environment:
    """An environment with all dependencies of the project, and nothing of the project itself."""
    top = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", top)
    (site,) = top.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Environment(top, site)


def test_the_wheel_brings_the_command_and_what_operations_needs(
    wheels: dict[str, Path], fresh: Environment, tmp_path: Path
) -> None:
    fresh.install(wheels["server"])
    assert run(fresh.topics, "--version", cwd=tmp_path)[0].startswith("topics ")
    target = tmp_path / "deploy"
    written = run(fresh.topics, "deploy-files", target, cwd=tmp_path)[0].split()
    wanted = {
        *("systemd/topics.service", "proxy/nginx.conf", "proxy/Caddyfile", "grafana/topics.json"),
        *("prometheus/prometheus.yml", "prometheus/topics.rules.yml"),
        *("proxy/haproxy.cfg", "proxy/Caddyfile-two-machines", "proxy/nginx-two-machines.conf"),
    }
    assert {str(Path(path).relative_to(target)) for path in written} == wanted
    for name in wanted:
        assert (target / name).read_bytes() == (ROOT / "deploy" / name).read_bytes()
    assert run(fresh.topics, "deploy-files", target)[0] == ""
    (target / "proxy" / "nginx.conf").write_text("mine")
    _, said = run(fresh.topics, "deploy-files", target, status=1)
    assert f"{target}/proxy/nginx.conf has other content" in said
    assert (target / "proxy" / "nginx.conf").read_text() == "mine"
    run(fresh.topics, "deploy-files", target, "--force")
    assert (target / "proxy" / "nginx.conf").read_bytes() == (ROOT / "deploy" / "proxy" / "nginx.conf").read_bytes()


def test_the_wheel_has_every_module(wheels: dict[str, Path], fresh: Environment) -> None:
    fresh.install(wheels["server"])
    for package in ("gateway", "shardd", "supervisor", "proto", "topics_server"):
        modules = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
        there = {str(path.relative_to(fresh.site)) for path in (fresh.site / package).rglob("*.py")}
        copies = ("topics_server/client/", "topics_server/readers/")
        assert modules == {path for path in there if not path.startswith(copies)}


def test_the_commands_use_the_client_of_their_wheel(
    wheels: dict[str, Path], fresh: Environment, tmp_path: Path
) -> None:
    """It is found without a distribution topics-client, and before another version of it."""
    fresh.install(wheels["server"])
    client = ROOT / "packages" / "topics-client" / "topics_client"
    copied = fresh.site / "topics_server" / "client" / "topics_client"
    for path in client.glob("*.*"):
        assert (copied / path.name).read_bytes() == path.read_bytes(), path
    fresh.plant("topics-client", {"topics_client/__init__.py": "raise RuntimeError"})
    _, said = run(fresh.topics, "ls", "--url", "http://127.0.0.1:1", "--patience", "0", status=3, cwd=tmp_path)
    assert "does not answer" in said


def test_topics_lake_uses_the_readers_of_its_wheel(wheels: dict[str, Path], fresh: Environment, tmp_path: Path) -> None:
    fresh.install(wheels["server"])
    copied = fresh.site / "topics_server" / "readers" / "pyspark_topics"
    for path in [*(ROOT / "pyspark_topics").glob("*.*"), *(ROOT / "pyspark_topics" / "lake").glob("*.py")]:
        assert (copied / path.relative_to(ROOT / "pyspark_topics")).read_bytes() == path.read_bytes(), path
    fresh.plant("pyspark-topics", {"pyspark_topics/__init__.py": "raise RuntimeError"})
    _, said = run(fresh.topics, "lake", "--to", tmp_path / "lake", "--path", tmp_path, status=1, cwd=tmp_path)
    assert said.startswith(f"topics: {tmp_path}: neither a data directory")


def test_the_distributions_share_no_file(wheels: dict[str, Path], fresh: Environment) -> None:
    for wheel in wheels.values():
        fresh.install(wheel)
    owned = {
        record.parent.name: {line.split(",")[0] for line in record.read_text().splitlines()}
        for record in fresh.site.glob("*topics*.dist-info/RECORD")
    }
    assert len(owned) == len(wheels)
    assert len(set.union(*owned.values())) == sum(map(len, owned.values()))
    assert [name for name, files in owned.items() if "pyspark_topics/__init__.py" in files] == [
        name for name in owned if name.startswith("pyspark_topics-")
    ]


@pytest.mark.parametrize("name", ["proto", "proto.py", "supervisor", "shardd"])
def test_a_package_that_hides_ours_is_told_in_one_sentence(
    wheels: dict[str, Path], fresh: Environment, tmp_path: Path, name: str
) -> None:
    fresh.install(wheels["server"])
    path = tmp_path / "first" / name
    code = path if path.suffix else path / "__init__.py"
    code.parent.mkdir(parents=True)
    code.write_text("raise RuntimeError")
    _, said = run(fresh.topics, "version", status=1, PYTHONPATH=str(tmp_path / "first"))
    assert len(said.splitlines()) == 1
    assert said.startswith(f"topics: the package {path.stem} at {path} hides the one of topics-server")
    assert "pipx install" in said


def test_a_directory_that_is_no_package_hides_nothing(
    wheels: dict[str, Path], fresh: Environment, tmp_path: Path
) -> None:
    fresh.install(wheels["server"])
    (tmp_path / "first" / "proto").mkdir(parents=True)
    assert run(fresh.topics, "version", PYTHONPATH=str(tmp_path / "first"))[1] == ""


def test_a_package_that_was_installed_over_ours_is_told_with_its_name(
    wheels: dict[str, Path], fresh: Environment
) -> None:
    fresh.install(wheels["server"])
    fresh.plant("proto-plus", {"proto/__init__.py": "", "proto/message.py": "class Message: pass\n"})
    _, said = run(fresh.topics, "version", status=1)
    assert len(said.splitlines()) == 1
    assert "was written over by another installation (there is a proto in proto-plus)" in said
    assert "uv tool install" in said
    fresh.install(wheels["server"])  # the distribution installed last owns the files
    run(fresh.topics, "version")


def test_an_editable_installation_is_told_too_what_hides_it(fresh: Environment, tmp_path: Path) -> None:
    (fresh.site / "topics_server.pth").write_text(f"{ROOT}\n")
    fresh.plant("proto-plus", {"proto/__init__.py": "raise RuntimeError"})
    _, said = run(fresh.top / "bin" / "python", "-m", "topics_server", "version", status=1, cwd=tmp_path)
    assert said.startswith(f"topics: the package proto at {fresh.site}/proto hides the one of topics-server")
    assert "(there is a proto in proto-plus)" in said


def test_the_doctor_names_a_distribution_with_a_package_of_the_same_name(
    wheels: dict[str, Path], fresh: Environment
) -> None:
    fresh.plant("proto-plus", {"proto/__init__.py": "", "proto/message.py": "class Message: pass\n"})
    fresh.install(wheels["server"])
    told, _ = run(fresh.topics, "doctor", "--url", "http://127.0.0.1:1", status=1)
    assert "fail  packages: proto-plus has a package proto, too" in told


def test_topics_spark_without_pyspark_says_so_in_one_sentence(
    wheels: dict[str, Path], fresh: Environment, tmp_path: Path
) -> None:
    (fresh.site / "lent.pth").unlink()
    fresh.install(wheels["spark"])
    _, said = run(fresh.top / "bin" / "topics-spark", "audit", "--path", tmp_path, status=2)
    assert said.startswith("topics-spark needs pyspark and pyarrow: pip install ")
    assert len(said.splitlines()) == 1


PUBLISH = """
import sys
from topics_client import Client
client = Client(sys.argv[1])
client.publish("t", {"n": 1})
print([record.data for record in client.read("t", from_seq=0)], __import__("topics_client").__file__)
"""


@contextmanager
def serving(environment: Environment, work: Path) -> Iterator[str]:
    """The installed command serves, and ends in order. Yields its URL."""
    log = work / "log"
    with log.open("w") as output:
        serve = [environment.topics, "serve", "--port", "0", "--data-dir", work / "data"]
        process = subprocess.Popen([str(each) for each in serve], stdout=output, stderr=output, cwd=work)
    try:
        yield until(lambda: re.search(r"topics is ready at (http://\S+)", log.read_text()), "a service that is ready")[
            1
        ]
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def ask(url: str, path: str, body: Any = None, method: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v0/{path}", data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def smoke(environment: Environment, work: Path) -> None:
    """Append, diff, watch and claim; restart; count."""
    with serving(environment, work) as url:
        ask(url, "topics/orders", {"records": [{"data": {"n": n}} for n in range(3)]})
        records = ask(url, "topics/orders/diff", {"from_seq": 0})["records"]
        assert [record["data"] for record in records] == [{"n": 0}, {"n": 1}, {"n": 2}]
        wid = ask(url, "watch", {"topics": {"orders": {"from_seq": 1}}})["wid"]
        with urllib.request.urlopen(f"{url}/v0/watch/{wid}", timeout=30) as stream:
            event = next(line for line in stream if line.startswith(b"data: ") and b'"records"' in line)
        assert [record["$seq"] for record in json.loads(event.removeprefix(b"data: "))["records"]] == [2, 3]
        ask(url, "topics/jobs", {"type": "queue", "durability": "fsync"}, "PUT")
        ask(url, "topics/jobs", {"records": [{"data": "done"}, {"data": "left"}]})
        (job,) = ask(url, "topics/jobs/claim", {"node": "w", "max": 1})["claimed"]
        assert job["data"] == "done"
        assert ask(url, "topics/jobs/ack", {"node": "w", "seqs": [job["$seq"]]})["acked"] == 1
    with serving(environment, work) as url:
        counts = {each["topic"]: each["count"] for each in ask(url, "topics")["topics"]}
        assert counts == {"orders": 3, "jobs": 1}
        assert ask(url, "topics/jobs/claim", {"node": "w", "max": 9})["claimed"][0]["data"] == "left"
        if (environment.site / "topics_client").exists():
            said = run(environment.top / "bin" / "python", "-c", PUBLISH, url, cwd=work)[0]
            assert said == f"[{{'n': 1}}] {environment.site}/topics_client/__init__.py\n"


def test_the_wheel_installs_with_one_command_into_an_empty_environment_and_works(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    """pip takes the dependencies from where it is configured to, in the locked versions."""
    known = tmp_path / "constraints"
    known.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in locks.read(ROOT / "requirements.lock")))
    top = tmp_path / "environment"
    run(sys.executable, "-m", "venv", top)
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    run(top / "bin" / "pip", "install", "--quiet", "--constraint", known, wheels["server"], cwd=tmp_path, **kept)
    (site,) = top.glob("lib/python*/site-packages")
    smoke(Environment(top, site), tmp_path)
    run(top / "bin" / "pip", "check", cwd=tmp_path)


def test_server_client_and_spark_package_install_from_files_and_work(
    wheels: dict[str, Path], fresh: Environment, tmp_path: Path
) -> None:
    for wheel in wheels.values():
        fresh.install(wheel)
    smoke(fresh, tmp_path)
    read = "from pyspark_topics.files import Files; import pyspark_topics; print(pyspark_topics.__file__)"
    python = fresh.top / "bin" / "python"
    assert run(python, "-c", read, cwd=tmp_path)[0] == f"{fresh.site}/pyspark_topics/__init__.py\n"
    assert "topics-spark archive" in run(fresh.top / "bin" / "topics-spark", "archive", "--help", cwd=tmp_path)[0]


def test_server_client_and_spark_package_install_from_a_git_url_and_work(fresh: Environment, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", repository]
    shutil.copytree(ROOT, repository, ignore=NOT_SOURCES)
    run("git", "init", "--quiet", repository)
    run(*git, "add", ".")
    run(*git, "commit", "--quiet", "-m", "everything")
    pip = [sys.executable, "-m", "pip", "--python", fresh.top / "bin" / "python", "--disable-pip-version-check"]
    for place in ("", "#subdirectory=packages/topics-client", "#subdirectory=packages/pyspark-topics"):
        run(*pip, "install", "--quiet", "--no-deps", f"git+file://{repository}{place}")
    smoke(fresh, tmp_path)
    assert "topics-spark archive" in run(fresh.top / "bin" / "topics-spark", "archive", "--help", cwd=tmp_path)[0]


def test_the_npm_package_installs_from_its_file_and_works(built: dict[str, Path], tmp_path: Path) -> None:
    if "npm" not in built:
        leave_out("npm and Node 20 or later, for the TypeScript client")
    run("npm", "init", "--yes", cwd=tmp_path)
    run("npm", "install", "--offline", "--no-audit", "--no-fund", built["npm"], cwd=tmp_path)
    code = 'import { Topics } from "topics-client"; console.log(typeof new Topics("http://127.0.0.1:1").publish)'
    assert run("node", "--input-type=module", "-e", code, cwd=tmp_path)[0] == "function\n"
