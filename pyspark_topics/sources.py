"""Choice of the source: the server's files (option `path`, module `files`) or a running service (`url`, `feed`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_topics.offsets import Source
from pyspark_topics.options import Options, parse


def source(given: Mapping[str, str], options: Options, schema: Any) -> Source:
    """The source for parsed `options` (from `given`); `schema` has the columns to read."""
    if options.url:
        from pyspark_topics import feed
        from pyspark_topics.client import Endpoint

        return feed.Feed(Endpoint.of(given), options, schema)
    from pyspark_topics import files

    return files.Files(options, schema)


def positions(given: Mapping[str, str]) -> Source:
    """A source for the positions of topics only, not for reading."""
    return source(given, parse(given, streaming=True), None)
