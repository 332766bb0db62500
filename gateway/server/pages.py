"""The pages for people: the status page, the reference and the console. They need no key, and their errors are those of
the API.

The first request of a page reads the files of all, and compresses those of the console, in a thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import trio

from gateway.contract import responses
from gateway.contract.routes import method_not_allowed, unknown_path
from gateway.http.gzip_coding import accepts_gzip
from gateway.http.messages import Request, Response
from proto.model.errors import TopicsError
from proto.process.driven import in_task
from proto.process.faults import faults

if TYPE_CHECKING:
    from gateway.server.console_files import ConsoleFiles, File

PAGES = frozenset(
    {
        *("/", "/status_page.css", "/status_page.js", "/icon.svg", "/favicon.ico", "/console"),
        *("/docs", "/docs/", "/docs/reference.css"),
        *(f"/docs/{name}.js" for name in ("reference", "elements", "samples", "try")),
    }
)
FOLDER = "/console/"
"""Everything below it belongs to the pages, too."""
METHODS = ["GET", "HEAD"]
_REFERRER = (b"referrer-policy", b"no-referrer")


class Pages:
    def __init__(self) -> None:
        self._loading = trio.Lock()
        self._fixed: dict[str, Response] = {}
        """The responses at paths other than those of the console."""
        self._console: ConsoleFiles | None = None
        self._policy = b""
        """Of the console."""

    def owns(self, path: str) -> bool:
        return path in PAGES or path.startswith(FOLDER)

    async def answer(self, request: Request) -> Response:
        """Return the page that is asked for, or its error. Requests share the bytes of a page, which cost the budget
        nothing."""
        try:
            if self._console is None:
                await in_task()
                async with self._loading:
                    if self._console is None:
                        await trio.to_thread.run_sync(self._load)
            return self._find(unquote(request.path), request)
        except TopicsError as error:
            return responses.failure(error, None)
        except Exception:
            return responses.failure(faults.failed("page"), None)

    def _load(self) -> None:
        for name in ("status_page", "reference_page"):
            module: Any = import_module(f"gateway.server.{name}")
            headers = ((b"content-security-policy", module.POLICY.encode()), _REFERRER, (b"cache-control", b"no-cache"))
            for path, (kind, content) in module.FILES.items():
                self._fixed[path] = Response(200, content, kind.encode(), headers)
        module = import_module("gateway.server.console_files")
        self._policy = module.POLICY.encode()
        self._console = module.ConsoleFiles()

    def _find(self, path: str, request: Request) -> Response:
        """Raises `404`, `405`."""
        assert self._console is not None
        digest, _, name = path.removeprefix(FOLDER).partition("/")
        document = path in ("/console", FOLDER)
        if path not in self._fixed and not document and not name:
            raise unknown_path(path)
        if request.method not in METHODS:
            raise method_not_allowed(request.method, METHODS)
        if (fixed := self._fixed.get(path)) is not None:
            return fixed
        file = self._console.document if document else self._console.find(digest, name)
        if file is None:
            raise unknown_path(path)
        return self._response(file, request)

    def _response(self, file: File, request: Request) -> Response:
        """A file of the console as the request asks for it: compressed, or only that the client has it already."""
        tag = file.tag.encode()
        headers = [
            (b"content-security-policy", self._policy),
            _REFERRER,
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cache-control", file.cache_control.encode()),
            (b"etag", tag),
            (b"vary", b"Accept-Encoding"),
        ]
        known = {each.strip().removeprefix(b"W/") for each in request.header(b"if-none-match").split(b",")}
        if tag in known or b"*" in known:
            return Response(304, headers=tuple(headers))
        content = file.content
        if file.packed and accepts_gzip(request.header(b"accept-encoding")):
            headers.append((b"content-encoding", b"gzip"))
            content = file.packed
        return Response(200, content, file.type.encode(), tuple(headers))
