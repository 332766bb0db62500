"""The console: its document and the files that this loads, from the folder `console` beside this module.

The files are served below a digest of all of them, `/console/<digest>/main.js`, and import each other by relative
paths. So a browser may keep each for ever, and a page never mixes files of two releases. The document names the digest
and is asked for again each time. No file is built or fetched: what is in the folder is what the browser gets.

The policy allows nothing but the service itself: no inline script or style, no other host, no frame around the page.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.abc import Traversable
from importlib.resources import files

from gateway.http.gzip_coding import SMALLEST_ANSWER, deflate

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html"
)
DOCUMENT = "index.html"
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_PLACE = b"{{files}}"
"""Stands in the document for the folder of its files."""


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    packed: bytes
    """As gzip; b"" where that is not worth it."""
    type: str
    tag: str
    """The ETag."""
    cache_control: str


class ConsoleFiles:
    """All files of the console, in memory, ready to be sent."""

    def __init__(self, folder: Traversable | None = None) -> None:
        found = dict(_walk(folder or files("gateway.server").joinpath("console")))
        document = found.pop(DOCUMENT)
        whole = hashlib.sha256()
        for name, content in sorted(found.items()):
            whole.update(f"{name}\0{len(content)}\0".encode() + content)
        self.digest = whole.hexdigest()[:16]
        self.document = _file(DOCUMENT, document.replace(_PLACE, f"/console/{self.digest}".encode()), ASK_AGAIN)
        self._files = {name: _file(name, content, FOR_EVER) for name, content in found.items()}

    def find(self, digest: str, name: str) -> File | None:
        """The file of this name, if the digest is that of this release."""
        return self._files.get(name) if digest == self.digest else None


def _walk(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        else:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _file(name: str, content: bytes, cache_control: str) -> File:
    packed = deflate(content) if len(content) >= SMALLEST_ANSWER else b""
    kind = _TYPES["." + name.rpartition(".")[2]]
    return File(content, packed, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"', cache_control)
