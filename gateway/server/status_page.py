"""The status page: one self-contained HTML document, `status_page.html` beside this module.

A key entered in the page stays there: the page sends it as a header and never shows it. So the page itself fetches and
shows links that need a key. The commands of the quick start take the key from the shell's environment.
"""

from __future__ import annotations

from importlib.resources import files

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
HTML = files("gateway.server").joinpath("status_page.html").read_text()
