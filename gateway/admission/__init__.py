"""Admission: how many requests, bytes and streams clients may have at once, and how slow a transfer may be.
`gateway.shards` limits what the shards hold.
"""
