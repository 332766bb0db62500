"""Connections: accepts, reads, answers in order, closes. `gateway.api` decides what a request means."""
