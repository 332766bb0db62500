"""The reference at `/docs`: a page that shows the service's OpenAPI and AsyncAPI documents.

Its files are in `reference`. It is written for these two documents, so it needs no library and no build. A browser asks
no other host: the policy allows scripts, styles and requests of the service alone. A request that is tried on the page
is sent to this service, with the key that the page keeps in memory.
"""

from __future__ import annotations

from importlib.resources import files

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FOLDER = files("gateway.server").joinpath("reference")
FILES: dict[str, tuple[str, bytes]] = {
    path: (f"text/{media}; charset=utf-8", _FOLDER.joinpath(name).read_bytes())
    for path, name, media in (
        ("/docs", "index.html", "html"),
        ("/docs/", "index.html", "html"),
        ("/docs/reference.css", "reference.css", "css"),
        *((f"/docs/{name}", name, "javascript") for name in ("reference.js", "elements.js", "samples.js", "try.js")),
    )
}
"""Path → Content-Type and content."""
