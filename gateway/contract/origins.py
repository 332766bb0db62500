"""Origins: decides for every request whether its web page may use the service, and sets the CORS headers of responses.

A browser runs pages of any site on the machine or network where the service listens, so the ability to connect proves
nothing. With keys, a page must have one, and a browser hides responses from pages of other origins. Without keys, only
the request's own headers tell a page of another site from a client of this machine:

    Host             the name the client used; a page of `evil.example` that made its name resolve to 127.0.0.1 (DNS
                     rebinding) is of the same origin as the service there, but sends its own name
    Origin           the origin of the page; on every POST, PUT, DELETE, EventSource, WebSocket and CORS `fetch`
    Sec-Fetch-Site   `cross-site` also where there is no Origin, such as an image or a form with GET; `same-site` for a
                     page at another port of this machine, which may look at what changes nothing, as by a link

Names accepted as Host without keys: loopback names, the address of the listener, and those in TOPICS_HOST and
TOPICS_ALLOWED_HOSTS. A listener beyond loopback (TOPICS_ALLOW_INSECURE_NO_AUTH=1) also accepts every IP address and
every name without a dot: the owner of a public domain can make neither resolve to the service. An absent Host is
accepted, because browsers always send it.

TOPICS_CORS_ORIGINS lists the origins of other sites whose pages may use the service, with and without keys. The list
also covers WebSockets, which browsers let any page open. A WebSocket with a key in a header does not come from a
browser, so its Origin is ignored. The service never asks for cookies or other credentials of the browser.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from gateway.http.messages import Request, Response
from gateway.http.short_cache import short_cache
from proto.model.errors import ErrorCode, TopicsError

MAX_AGE_S = 600
"""How long a browser may cache the response to a preflight request."""
ALLOWED_HEADERS = b", ".join(
    [
        b"Authorization",
        b"Content-Type",
        b"Content-Encoding",
        b"Idempotency-Key",
        b"Last-Event-ID",
        b"Cache-Control",
        b"traceparent",
        b"tracestate",
    ]
)
EXPOSED_HEADERS = b"Retry-After, Allow, WWW-Authenticate, topics-holder"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Verdict(Enum):
    OWN = "own"
    """Not a page of another site, or one that its browser keeps from reading the response."""
    LISTED = "listed"
    """A page of an origin that may use the service."""
    FOREIGN_HOST = "host"
    FOREIGN_ORIGIN = "origin"
    CROSS_SITE = "cross_site"


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a listener. `open`: clients need no key. `loopback`: only this machine reaches the listener. `hosts`
    are further accepted names; `origins` are those of other sites' pages, both in lower case without default ports."""

    open: bool
    loopback: bool = True
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()


@short_cache(1024)
def decide(rule: Rule, host: bytes, origin: bytes, site: bytes, websocket: bool, keyed: bool, changes: bool) -> Verdict:
    """Decide by the headers of a request that name its origin, b"" where absent. `keyed`: it has an Authorization
    header. `changes`: what it asks for may change something. Most requests share few combinations, so there is a cache.
    """
    named = host.decode("latin-1")
    if rule.open and named and not host_accepted(named, rule):
        return Verdict.FOREIGN_HOST
    page = origin.decode("latin-1").lower()
    if page and not same_origin(page, named):
        if page in rule.origins:
            return Verdict.LISTED
        if rule.open or (websocket and not keyed):
            return Verdict.FOREIGN_ORIGIN
    elif rule.open:
        fetched = site.decode("latin-1").lower()
        if fetched == "cross-site" or (changes and fetched == "same-site"):
            return Verdict.CROSS_SITE
    return Verdict.OWN


def host_accepted(host: str, rule: Rule) -> bool:
    """Whether a service without keys accepts a Host header."""
    name = name_of(host)
    if name in rule.hosts or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return not rule.loopback and "." not in name and name.replace("-", "").replace("_", "").isalnum()
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or not rule.loopback


def name_of(host: str) -> str:
    """Return the name or address in a Host header, without port, brackets and final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    if colon and (port.isdigit() or not port):
        host = name
    return host.removesuffix(".")


def same_origin(origin: str, host: str) -> bool:
    """Whether a page of `origin` was served under `host`. The scheme is ignored: a proxy may have spoken TLS."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    port = _DEFAULT_PORTS.get(parts.scheme)
    if port is None or not parts.netloc:
        return False
    return parts.netloc.removesuffix(port) == host.strip().lower().removesuffix(port)


_REFUSALS = {
    Verdict.FOREIGN_HOST: (
        "without keys, the service answers only to names of this machine, and {shown} is not one of them; connect to "
        "localhost, name it in TOPICS_ALLOWED_HOSTS, or configure keys"
    ),
    Verdict.FOREIGN_ORIGIN: (
        "pages of the origin {shown} may not use this service; name it in TOPICS_CORS_ORIGINS, or serve the page and "
        "the service from one origin"
    ),
    Verdict.CROSS_SITE: (
        "without keys, another site's page may not use this service; name its origin in TOPICS_CORS_ORIGINS and ask "
        "with CORS, or open this address by itself"
    ),
}


class Origins:
    """The rule of one gateway, and the CORS headers of its responses."""

    def __init__(self, *, open: bool, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self.rule = Rule(open, True, frozenset(map(name_of, hosts)), frozenset(each.lower() for each in origins))

    def listens(self, address: Any) -> None:
        """Set the rule for a listener's `getsockname`. An address other than (host, port, …) is local."""
        if not isinstance(address, tuple):
            return
        loopback = host_accepted(f"[{address[0]}]", Rule(True))
        self.rule = Rule(self.rule.open, loopback, self.rule.hosts | {str(address[0]).lower()}, self.rule.origins)

    def admits(self, request: Request) -> bool:
        return _verdict(request, self.rule) in (Verdict.OWN, Verdict.LISTED)

    def check(self, request: Request, *, changes: bool = False) -> None:
        """Check a request, which may change something or not. Raises `403 forbidden`, with the remedy."""
        verdict = _verdict(request, self.rule, changes)
        if (text := _REFUSALS.get(verdict)) is None:
            return
        shown = request.header(b"host" if verdict is Verdict.FOREIGN_HOST else b"origin").decode("latin-1")[:100]
        raise TopicsError(ErrorCode.FORBIDDEN, text.format(shown=f'"{shown}"'), {"reason": verdict.value})

    def preflight(self, request: Request, methods: Collection[str]) -> Response:
        """Return the response to a preflight request. Raises `403 forbidden`."""
        origin = request.header(b"origin").decode("latin-1")
        own = same_origin(origin.lower(), request.header(b"host").decode("latin-1"))
        if not own and origin.lower() not in self.rule.origins:
            text = _REFUSALS[Verdict.FOREIGN_ORIGIN].format(shown=f'"{origin[:100]}"')
            raise TopicsError(ErrorCode.FORBIDDEN, text, {"reason": Verdict.FOREIGN_ORIGIN.value})
        return Response(
            204,
            headers=(
                (b"access-control-allow-methods", ", ".join(methods).encode()),
                (b"access-control-allow-headers", ALLOWED_HEADERS),
                (b"access-control-max-age", b"%d" % MAX_AGE_S),
            ),
        )

    def tell(self, request: Request, response: Response) -> None:
        """Add the headers to a response that let pages of listed origins read it. Only for a rule that lists any."""
        vary = b"Origin"
        headers = []
        for name, value in response.headers:
            if name == b"vary":
                vary = value + b", " + vary
            else:
                headers.append((name, value))
        headers.append((b"vary", vary))
        origin = request.header(b"origin")
        if origin and origin.decode("latin-1").lower() in self.rule.origins:
            headers.append((b"access-control-allow-origin", origin))
            headers.append((b"access-control-expose-headers", EXPOSED_HEADERS))
        response.headers = tuple(headers)


def _verdict(request: Request, rule: Rule, changes: bool = False) -> Verdict:
    websocket = request.upgrade == b"websocket"
    if not rule.open and not websocket:
        return Verdict.OWN  # CORS decides whether the page may read the response
    get = request.headers.get
    keyed = b"authorization" in request.headers
    named = get(b"host", b""), get(b"origin", b""), get(b"sec-fetch-site", b"")
    return decide(rule, *named, websocket, keyed, changes)
