#!/usr/bin/python3
"""A stand-in for systemd with one service: the parts of a unit file that start, signal and stop it.

    systemctl daemon-reload
    systemctl start|restart|reload|reload-or-restart|stop UNIT
    systemctl enable --now UNIT

Done: drop-ins, Environment, EnvironmentFile, %d, LoadCredential (a copy of the time of the start, which its user can
read), StateDirectory and RuntimeDirectory with their modes, User, UMask, ExecStartPre, ExecReload, SIGTERM; of the
types notify (waits for READY, and for RELOADING and READY on a reload) and forking. `daemon-reload` has systemd-analyze
verify what is installed. Left out: everything that confines the service, the watchdog, restarts, dependencies.
"""

import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

UNITS = (Path("/etc/systemd/system"), Path("/lib/systemd/system"))
STATE = Path("/run/played-systemd")
PATIENCE_S = 60


def read(unit):
    """The [Service] section: name -> values, in order; an empty value forgets those before it."""
    path = next(d / f"{unit}.service" for d in UNITS if (d / f"{unit}.service").exists())
    found = {}
    for file in [path, *sorted(Path(f"{UNITS[0]}/{unit}.service.d").glob("*.conf"))]:
        section = ""
        for line in file.read_text().splitlines():
            if line.startswith("["):
                section = line.strip()
            elif section == "[Service]" and "=" in line and not line.startswith("#"):
                name, value = line.split("=", 1)
                found[name] = [*found.get(name, []), value] if value else []
    return found


def only(service, name, default=""):
    return service.get(name, [default])[-1]


def commands(service, name, **variables):
    for line in service.get(name, []):
        words = [os.path.expandvars(word) for word in shlex.split(line.lstrip("-"))]
        yield [variables.get(word, word) for word in words]


def environment(service, unit, user):
    """Makes its directories and credentials on the way."""
    made = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    for kind, place, variable in (("State", "/var/lib", "STATE_DIRECTORY"), ("Runtime", "/run", "RUNTIME_DIRECTORY")):
        for name in service.get(f"{kind}Directory", []):
            directory = Path(place, name)
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(int(only(service, f"{kind}DirectoryMode", "0755"), 8))
            os.chown(directory, user.pw_uid, user.pw_gid)
            made[variable] = str(directory)
    credentials = Path("/run/credentials", f"{unit}.service")
    shutil.rmtree(credentials, ignore_errors=True)
    for line in service.get("LoadCredential", []):
        name, source = line.split(":", 1)
        credentials.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, credentials / name)
        for each, mode in ((credentials, 0o500), (credentials / name, 0o400)):
            os.chmod(each, mode)
            os.chown(each, user.pw_uid, user.pw_gid)
    for line in service.get("Environment", []):
        for word in shlex.split(line):
            name, value = word.split("=", 1)
            made[name] = value.replace("%d", str(credentials)).replace("%%", "%")
    for path in service.get("EnvironmentFile", []):
        if Path(path.lstrip("-")).exists():
            lines = Path(path.lstrip("-")).read_text().splitlines()
            made.update(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        elif not path.startswith("-"):
            sys.exit(f"{path}: no such file")
    return made


def hear(listening, wanted, process=None):
    """Return when a message has the line `wanted`."""
    listening.settimeout(0.2)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if wanted in listening.recv(4096).decode().splitlines():
                return
        except TimeoutError:
            pass
        if process is not None and process.poll() is not None:
            sys.exit(f"ended with status {process.returncode}\n{log.read_text()}")
    sys.exit(f"waited in vain for {wanted}\n{log.read_text()}")


def notify_socket(path):
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(path))
    path.chmod(0o777)
    return listening


def start(unit):
    service = read(unit)
    user = pwd.getpwnam(only(service, "User", "root"))
    for command in commands(service, "ExecStartPre"):
        subprocess.run(command, check=True)
    (command,) = commands(service, "ExecStart")
    if only(service, "Type") == "forking":
        subprocess.run(command, check=True)
        return
    assert only(service, "Type") == "notify"
    path = STATE / f"{unit}.notify"
    with notify_socket(path) as listening, open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            env=environment(service, unit, user) | {"NOTIFY_SOCKET": str(path)},
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            umask=int(only(service, "UMask", "0022"), 8),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
        (STATE / f"{unit}.pid").write_text(str(process.pid))
        hear(listening, "READY=1", process)


def main_pid(unit):
    """Of the service that runs, or None."""
    path = STATE / f"{unit}.pid"
    if not path.exists():
        path = Path(only(read(unit), "PIDFile", str(path)))
    try:
        pid = int(path.read_text())
        # Its parent is gone, and process 1 here waits for no child, so an ended process stays as a zombie.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else pid


def stop(unit):
    pid = main_pid(unit)
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_S
    while main_pid(unit) is not None:
        if time.monotonic() > deadline:
            sys.exit(f"{unit} does not stop\n{log.read_text()}")
        time.sleep(0.02)


def reload(unit):
    pid = main_pid(unit)
    service = read(unit)
    assert pid is not None, f"{unit} does not run"
    os.environ["MAINPID"] = str(pid)
    if only(service, "Type") != "notify":
        for command in commands(service, "ExecReload"):
            subprocess.run(command, check=True)
        return
    with notify_socket(STATE / f"{unit}.notify") as listening:
        for command in commands(service, "ExecReload"):
            subprocess.run(command, check=True)
        hear(listening, "RELOADING=1")
        hear(listening, "READY=1")


def verify():
    ours = [str(path) for path in UNITS[0].glob("*.service") if not path.is_symlink()]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *ours], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if any(Path(path).name in line for path in ours)]
    if done.returncode or said:
        sys.exit(done.stderr)


STATE.mkdir(exist_ok=True)
verb, *rest = sys.argv[1:]
units = [word.removesuffix(".service") for word in rest if not word.startswith("-")]
log = STATE / f"{units[0]}.log" if units else STATE / "log"
log.touch()
if verb == "daemon-reload":
    verify()
elif verb in ("start", "enable"):
    start(units[0])
elif verb == "restart":
    stop(units[0])
    start(units[0])
elif verb == "stop":
    stop(units[0])
elif verb == "reload":
    reload(units[0])
elif verb == "reload-or-restart":
    (start if main_pid(units[0]) is None else reload)(units[0])
else:
    sys.exit(f"systemctl {verb} is not played here")
