"""A disposable machine: the real one seen through an overlay, so that its writes reach nothing outside.

Commands run in it as printed, as root, with real paths: `useradd` adds a user to a copy of /etc/passwd, and files in
/etc, /opt and /var stay in memory. It has its own processes. Its own network has only loopback, unless a command needs
packages from outside. Two commands are not real. `apt-get install` only checks that the packages are installed.
`systemctl` is `tests.support.systemctl`, which follows the parts of a unit that start a service, not those that confine
it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import leave_out, tool

ROOT = Path(__file__).parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAKE = """
set -e
mount -t tmpfs -o mode=0755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs -o mode=0755 tmpfs "$1/root/run"
mount -t tmpfs -o mode=1777 tmpfs "$1/root/tmp"
ip link set lo up
exec chroot "$1/root" sh -c "echo made; exec sleep infinity"
"""
_APT_GET = """#!/bin/sh
# Nothing is installed here: what the packages are for must be there. tools/install-ops.sh sees to it.
for package; do
    case $package in
        install | -*) ;;
        python3-venv) python3 -c "import ensurepip" ;;
        *) command -v "${package%-light}" > /dev/null || { echo "$package is missing"; exit 100; } ;;
    esac
done
"""


class MachineError(Exception):
    """This user or this kernel cannot make the machine. The text names the refused call."""


class Machine:
    def __init__(self, holder: int) -> None:
        self._holder = str(holder)

    def run(self, script: str, *, outside: bool = False, timeout_s: float = 120) -> str:
        """Run commands and return their output, standard error included. `outside` lends them the real network. Raises
        `AssertionError` with the output when a command fails."""
        spaces = ["--mount", "--pid", "--root", "--wd", *([] if outside else ["--net"])]
        command = ["nsenter", "--target", self._holder, *spaces, "env", f"PATH={SYSTEM_PATH}", "HOME=/root"]
        command += ["sh", "-e", "-c", f"cd /root/topics && {{\n{script}\n}}"]
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "LANG", "LC_", "SSL_"))}
        kept |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        done = subprocess.run(
            command,
            env=kept | {"PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"status {done.returncode}\n--- of\n{script}\n--- which said\n{done.stdout}"
        return done.stdout

    def install(self, path: str, content: str) -> None:
        """Put a program into the machine's path."""
        directory = Path(f"/proc/{self._holder}/root")
        (directory / path.lstrip("/")).write_text(content)
        (directory / path.lstrip("/")).chmod(0o755)

    def copy_checkout(self) -> None:
        """Copy the project's files to /root/topics, without built and ignored files."""
        target = f"/proc/{self._holder}/root/root/topics"
        os.mkdir(target)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        there = b"\0".join(name for name in listed.split(b"\0") if name and (ROOT / os.fsdecode(name)).exists())
        packed = subprocess.Popen(
            ["tar", "--null", "--files-from=-", "--create"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with packed, subprocess.Popen(["tar", "--extract", "--no-same-owner"], cwd=target, stdin=packed.stdout) as into:
            assert packed.stdin is not None
            packed.stdin.write(there)
            packed.stdin.close()
            assert into.wait(60) == 0


@contextmanager
def machine() -> Iterator[Machine]:
    """Make a machine with a copy of the project at /root/topics, and remove it with its processes afterwards. Raises
    `MachineError`. A test is left out where a package is not installed that a page installs."""
    for program in ("nginx", "openssl", "curl"):
        tool(program)
    new = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run(["/usr/bin/python3", "-c", new], capture_output=True, check=False).returncode:
        leave_out("python3-venv of Python 3.11 or later")
    with tempfile.TemporaryDirectory(prefix="topics-m") as directory:
        holder = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c", _MAKE, "sh", directory],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert holder.stdout is not None
        try:
            said = holder.stdout.readline()
            if said != "made\n":
                raise MachineError(said + holder.stdout.read())
            (inside,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
            # Go on only after it has changed its root: no command may install anything in the real machine.
            assert os.stat(f"/proc/{inside}/root").st_dev != os.stat("/").st_dev
            made = Machine(int(inside))
            made.copy_checkout()
            made.install("/usr/local/bin/apt-get", _APT_GET)
            made.install("/usr/local/bin/systemctl", (ROOT / "tests" / "support" / "systemctl.py").read_text())
            yield made
        finally:
            holder.kill()
            holder.wait(10)
            holder.stdout.close()
