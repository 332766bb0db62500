"""Copies from one topic into another: planned, made, and made again after a stop. When a source is asked is for
`shardd.process.router_tasks`.
"""
