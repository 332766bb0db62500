"""Object stores for tests: one in memory that fails on demand, and a server that speaks S3."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from threading import Lock
from types import TracebackType

from proto.format.buffer import Buffer
from shardd.replication.store import Absent, Entry, Exists, StoreError, UnknownOutcome
from tests.support.service import until

Fault = Callable[[str, str], StoreError | None]
"""From an operation and a name to the error that it fails with, or None."""


class MemoryStore:
    """A store in memory. `fault` is asked before each call; an `UnknownOutcome` for a write is raised after it."""

    def __init__(self) -> None:
        self.url = "memory://"
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self.fault: Fault = lambda operation, name: None
        self.conditional = True
        """False: `create` replaces, as in a store that ignores conditions."""
        self._lock = Lock()

    def _begin(self, operation: str, name: str) -> StoreError | None:
        self.calls.append((operation, name))
        error = self.fault(operation, name)
        if error is not None and not (isinstance(error, UnknownOutcome) and operation in ("create", "put")):
            raise error
        return error

    def create(self, name: str, data: Buffer) -> None:
        error = self._begin("create", name)
        with self._lock:
            if name in self.objects and self.conditional:
                raise Exists(f"{name} exists already")
            self.objects[name] = bytes(data)
        if error is not None:
            raise error

    def put(self, name: str, data: Buffer) -> None:
        error = self._begin("put", name)
        self.objects[name] = bytes(data)
        if error is not None:
            raise error

    def get(self, name: str) -> Buffer:
        self._begin("get", name)
        if name not in self.objects:
            raise Absent(f"{name} does not exist")
        return self.objects[name]

    def get_range(self, name: str, offset: int, size: int) -> Buffer:
        return self.get(name)[offset : offset + size]

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        self._begin("list", prefix)
        return iter(
            [Entry(n, len(self.objects[n])) for n in sorted(self.objects) if n.startswith(prefix) and n > after]
        )

    def delete(self, name: str) -> None:
        self._begin("delete", name)
        self.objects.pop(name, None)


SERVER = """
import io, sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

inner, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def application(environ, start_response):
    # Before the lock: a machine that is cut off may never send the rest.
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    with lock:
        return list(inner(environ, start_response))

run_simple(sys.argv[1], int(sys.argv[2]), application, threaded=True, request_handler=MotoRequestHandler)
"""
"""moto with a lock: by itself it looks whether an object exists and creates it in two steps, between which another
thread may create the same one on a loaded machine; and it fails a read of an object that is replaced meanwhile."""


class S3Server:
    """moto's server in a process of its own, with one bucket. A context manager."""

    def __init__(self, bucket: str = "replica", host: str = "127.0.0.1") -> None:
        self.bucket = bucket
        self._host = host
        self.url = f"s3://{bucket}/topics"
        with socket.socket() as free:
            free.bind((host, 0))
            self.port = free.getsockname()[1]
        self.endpoint = f"http://{host}:{self.port}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        command = [sys.executable, "-c", SERVER, self._host, str(self.port)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        )
        try:
            until(self._answers, "the S3 server", 60)
            urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{self.bucket}", method="PUT")).close()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.endpoint}/moto-api/").close()
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def objects(self, prefix: str) -> dict[str, bytes]:
        """The objects whose names begin with `prefix`, in the order of their names."""
        found: dict[str, bytes] = {}
        after = ""
        while True:
            query = urllib.parse.urlencode({"list-type": "2", "prefix": prefix, "start-after": after})
            listed = ElementTree.fromstring(self._get(f"?{query}"))
            names = [each.text or "" for each in listed.iter() if each.tag.endswith("}Key")]
            found |= {name: self._get(f"/{urllib.parse.quote(name)}") for name in names}
            if not names:
                return found
            after = names[-1]

    def _get(self, path: str) -> bytes:
        # The server looks whether there is a signature, not which.
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}
        request = urllib.request.Request(f"{self.endpoint}/{self.bucket}{path}", headers=signed)
        with urllib.request.urlopen(request, timeout=30) as answer:
            content: bytes = answer.read()
        return content

    def signal(self, number: int) -> None:
        """Send a signal to the server: SIGSTOP makes it silent, SIGCONT brings it back."""
        assert self._process is not None
        self._process.send_signal(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
