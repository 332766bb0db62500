"""Completion of names by asking the service, briefly: an error completes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import quote

import typer

from proto.model.visible import visible
from supervisor.cli import contexts as contexts_module
from supervisor.client.http_client import Client, ClientError

TIMEOUT_S = 0.5
MOST = 100


def topic_names(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Names of topics of the service that the command line so far names."""
    from supervisor.cli.endpoint import resolve

    given = context.params
    try:
        endpoint = resolve(given.get("url"), given.get("token"), given.get("context"))
        with Client(endpoint.url, endpoint.token, timeout_s=TIMEOUT_S) as client:
            found = client.get(f"/v0/topics?page_size={MOST}&prefix={quote(incomplete)}").json()
    except (ClientError, ValueError, typer.Exit):
        return
    yield from (visible(each["topic"]) for each in found["topics"])


def context_names(incomplete: str) -> Iterator[str]:
    try:
        known = contexts_module.load(contexts_module.path(os.environ)).contexts
    except contexts_module.ContextError:
        return
    yield from (name for name in sorted(known) if name.startswith(incomplete))
