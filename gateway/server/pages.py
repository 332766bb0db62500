"""The pages: a Quart application on trio. Its errors are the API's canonical ones."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from quart import Response as QuartResponse
from quart import request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, NotFound

from gateway.contract import responses
from gateway.contract.routes import method_not_allowed, unknown_path
from gateway.http.gzip_coding import accepts_gzip
from gateway.http.messages import Response
from gateway.server import console_files
from gateway.server.asgi import Receive, Scope, Send
from gateway.server.console_files import ConsoleFiles, File
from gateway.server.page_paths import FILES, POLICY
from proto.process.faults import faults


async def _unsniffed(response: QuartResponse) -> QuartResponse:
    response.headers["x-content-type-options"] = "nosniff"
    return response


def _as_quart(response: Response) -> QuartResponse:
    headers = {name.decode(): value.decode() for name, value in response.headers}
    return QuartResponse(
        response.body, response.status, headers=headers, content_type=response.content_type.decode("ascii")
    )


def _sent(file: File) -> QuartResponse:
    """A file as the request asks for it: compressed, or only told that the client has it already."""
    headers = {
        "content-security-policy": console_files.POLICY,
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": file.cache_control,
        "etag": file.tag,
        "vary": "Accept-Encoding",
    }
    known = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
    if file.tag in known or "*" in known:
        return QuartResponse(b"", 304, headers=headers)
    if file.packed and accepts_gzip(request.headers.get("accept-encoding", "").encode("latin-1")):
        headers["content-encoding"] = "gzip"
        return QuartResponse(file.packed, headers=headers, content_type=file.type)
    return QuartResponse(file.content, headers=headers, content_type=file.type)


class WebPages:
    """The ASGI application of the pages, and the paths it owns."""

    def __init__(self) -> None:
        self._app: Any = QuartTrio("gateway.server.pages", static_folder=None)
        self._console = ConsoleFiles()
        folder = files("gateway.server")
        self._files = {path: (kind, folder.joinpath(name).read_bytes()) for path, (kind, name) in FILES.items()}
        views: dict[str, Any] = dict.fromkeys(FILES, self._page)
        views |= {"/console": self._document, "/console/": self._document}
        views["/console/<digest>/<path:name>"] = self._console_file
        for path, view in views.items():
            self._app.add_url_rule(path, path, view, methods=["GET"], provide_automatic_options=False)
        self._app.register_error_handler(HTTPException, _refused)
        self._app.after_request(_unsniffed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _page(self) -> QuartResponse:
        content_type, content = self._files[request.path]
        headers = {"content-security-policy": POLICY, "referrer-policy": "no-referrer", "cache-control": "no-cache"}
        return QuartResponse(content, content_type=content_type, headers=headers)

    async def _document(self) -> QuartResponse:
        return _sent(self._console.document)

    async def _console_file(self, digest: str, name: str) -> QuartResponse:
        found = self._console.find(digest, name)
        if found is None:
            raise NotFound
        return _sent(found)


async def _refused(error: Any) -> QuartResponse:
    if error.code == 405:
        return _as_quart(responses.failure(method_not_allowed(request.method, sorted(error.valid_methods or [])), None))
    if error.code == 404:
        return _as_quart(responses.failure(unknown_path(request.path), None))
    return _as_quart(responses.failure(faults.failed("page"), None))
