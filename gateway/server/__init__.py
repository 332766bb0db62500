"""Connections: accepted, read, answered in order, ended. What a request means is up to `gateway.api`."""
