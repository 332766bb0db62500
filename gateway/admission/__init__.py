"""How much clients may have at once: requests, bytes, streams, time. What shards may hold is in
`gateway.shards`.
"""
