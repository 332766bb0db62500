"""Which source answers: the server's files (option `path`, module `files`), or a running service (`url`, `feed`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_topics import feed, files
from pyspark_topics.client import Endpoint
from pyspark_topics.offsets import Source
from pyspark_topics.options import Options, parse


def source(given: Mapping[str, str], options: Options, schema: Any) -> Source:
    """`options` are `given` ones, parsed; `schema` is that of the columns to read."""
    if options.url:
        return feed.Feed(Endpoint.of(given), options, schema)
    return files.Files(options, schema)


def positions(given: Mapping[str, str]) -> Source:
    """A source to ask where topics begin and end, but not to read."""
    return source(given, parse(given, streaming=True), None)
