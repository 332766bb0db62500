"""What the OpenAPI document cannot tell of requests: the service may refuse these although they fit their schemas."""

from __future__ import annotations

UNTOLD = {
    ("ack", "lease_ids"),  # as many as seqs
    ("nack", "lease_ids"),
    ("extend", "lease_ids"),
    ("claim", "ack.lease_ids"),
    ("claim", "nack.lease_ids"),
    ("append", "records"),  # a record that the topic's caps never let in
    ("append", "delay_ms"),  # of a log
    ("append", "config"),
    ("configure_topic", "dead_letter"),  # the topic itself
    ("list_topics", "cursor"),  # one that the service did not give
    ("list_routers", "cursor"),
    ("list_cursors", "cursor"),
    ("list_all_cursors", "cursor"),
    ("watch", "cursor"),
    ("watch_stream", "Last-Event-ID"),
    ("peek", "from_seq"),  # other than first_seq
    ("redrive", "from_seq"),
    ("redrive", "to_seq"),
    ("redrive", "queue"),  # the topic itself
    ("put_router", "source"),  # missing, for a new router
    ("put_router", "dest"),
    ("put_cursor", "seq"),  # beyond the head
    ("websocket", None),  # needs an upgrade
}
"""Operations, and the fields for which they may refuse what the document allows: no schema can tell the rule."""
IN_BYTES = {"node", "tag", "meta"}
"""Fields whose bytes have a limit. A schema counts characters."""
