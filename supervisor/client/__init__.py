"""Clients of a running service, and what they read and write: HTTP, Walrus, Rog, JSON Lines."""
