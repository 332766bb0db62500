"""Routers: copies from one topic into another, planned, made, and made again after a stop.

`shardd.process.router_tasks` decides when a source is asked.
"""
