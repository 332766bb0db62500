"""Endpoint: the URL of the service that a command uses, and the token, which is an API key of the service.

    --url                           that URL
    else --context                  the URL and the token of that context
    else TOPICS_URL                 that URL
    else TOPICS_CONTEXT, else the context in use
    else, a local service runs      the service that uses the data directory, at the address it listens on
    else                            TOPICS_HOST and TOPICS_PORT

The token is that of --token, else of the context if the URL is from it, else of TOPICS_TOKEN. One that is not an option
goes only where it belongs, as in the clients: that of a context to its URL, and TOPICS_TOKEN, if TOPICS_URL is set, to
that scheme, host and port. An empty --token sends none.

A local service has a status file in its runtime directory, readable by its own user and root only. The file has details
of its processes that the API does not have. A file that another user could have written is ignored (`rundir.status`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli import contexts
from supervisor.cli.terminal import Status, fail, read_seconds
from supervisor.client.http_client import Client, origin
from supervisor.config import places, variables
from supervisor.process import rundir

if TYPE_CHECKING:
    from supervisor.config.settings import Settings

UrlOption = Annotated[str | None, typer.Option("--url", help="The service [TOPICS_URL; the one that runs here].")]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="A context by its name [TOPICS_CONTEXT; the one in use].")
]
TokenOption = Annotated[str | None, typer.Option("--token", help="An API key of the service; better in TOPICS_TOKEN.")]
PatienceOption = Annotated[
    float,
    typer.Option(
        "--patience",
        parser=read_seconds,
        metavar="DURATION",
        help="How long to retry while the service is down, starting or too busy: seconds, or with a unit.",
    ),
]

TOKEN_REMEDY = "give a token with --token, a context, or TOPICS_TOKEN, which goes to TOPICS_URL only if that is set"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """URL and token of a service. `local` is the content of its status file, None if there is none or it is not
    readable."""

    url: str
    token: str | None
    local: dict[str, Any] | None = None

    def client(self) -> Client:
        """A client of the service. Ends the command if the URL is invalid."""
        try:
            return Client(self.url, self.token)
        except ValueError as error:
            fail(str(error), Status.USAGE)

    def again(self) -> Endpoint:
        """The same endpoint with the present content of the status file."""
        return self if self.local is None else resolve(self.url, self.token or "")


def resolve(
    url: str | None,
    token: str | None,
    context: str | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    local: bool = True,
) -> Endpoint:
    """The endpoint for these options. Ends the command if settings are wrong.

    Without `local`, the status file is not read, nor are the settings, if the URL is known otherwise.
    """
    environment = os.environ if environment is None else environment
    if url is not None and context is not None:
        fail("--url and --context both name a service; give one of them", Status.USAGE)
    if url is None:
        url, token = _named(context, token, environment)
    if url is not None and not local:
        return Endpoint(url, token_for(url, token, environment))
    settings: Settings | places.Places | None = places.plain(environment)
    if settings is None:
        from supervisor.cli.own_settings import settings as own_settings

        settings = own_settings()
    found = rundir.status(settings.runtime_dir, environment, settings.data_dir)
    if url is None:
        url = found["url"] if found is not None else configured(settings)
    here = found if found is not None and found["url"] == url.rstrip("/") else None
    return Endpoint(url, token_for(url, token, environment), here)


def token_for(url: str, token: str | None, environment: Mapping[str, str]) -> str | None:
    """The token to send to a URL: the one given, else TOPICS_TOKEN, unless TOPICS_URL says that it is of another
    service. Ends the command if TOPICS_URL or the URL is none."""
    theirs = environment.get(variables.URL)
    if token is None and environment.get(variables.TOKEN):
        try:
            if not theirs or origin(theirs) == origin(url):
                token = environment[variables.TOKEN]
        except ValueError as error:
            fail(str(error), Status.USAGE)
    return token or None


def _named(context: str | None, token: str | None, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """URL and token by TOPICS_URL or a context; the URL is None if there is neither."""
    if context is None and environment.get(variables.URL):
        return environment[variables.URL], token
    try:
        known = contexts.load(contexts.path(environment))
        name = context or environment.get(variables.CONTEXT) or known.current
        if not name:
            return None, token
        found = known.find(name)
        return found.url, contexts.token(name, found) if token is None else token
    except contexts.ContextError as error:
        fail(str(error), Status.USAGE)


def configured(settings: Settings | places.Places) -> str:
    """The URL at which a service with these settings listens, from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
