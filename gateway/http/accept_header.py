"""The Accept header: the weight that a client gives to a media type."""

from __future__ import annotations

from gateway.http.short_cache import short_cache


@short_cache(1024)
def weight(accept: bytes, media: bytes) -> float:
    """Return the weight, 0.0 to 1.0, of a type such as `text/plain`. The most specific matching range decides. Without
    a header, every type has weight 1.0."""
    if not accept.strip():
        return 1.0
    return max(_ranges(accept, media), default=(0, 0.0))[1]


@short_cache(1024)
def named(accept: bytes, media: bytes) -> bool:
    """Whether the header names the type itself with a weight above 0; `*/*` and `text/*` do not count."""
    rank, wanted = max(_ranges(accept, media), default=(0, 0.0))
    return rank == len(_forms(media)) and wanted > 0


def _forms(media: bytes) -> list[bytes]:
    return [b"*/*", media.partition(b"/")[0] + b"/*", media]


def _ranges(accept: bytes, media: bytes) -> list[tuple[int, float]]:
    """Return (specificity, weight) of every range that matches. A more specific range has the larger number."""
    ranks = {form: rank for rank, form in enumerate(_forms(media), 1)}
    found: list[tuple[int, float]] = []
    for item in accept.lower().split(b","):
        name, *parameters = [part.strip() for part in item.split(b";")]
        if name not in ranks:
            continue
        wanted = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                try:
                    wanted = min(max(float(parameter[2:]), 0.0), 1.0)
                except ValueError:
                    wanted = 0.0
        found.append((ranks[name], wanted))
    return found
