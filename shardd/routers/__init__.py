"""Routers: copies from one topic into another, planned, made, and made again after a stop. In shard 0, their registrar.

`shardd.process.router_tasks` decides when a source is asked.
"""
