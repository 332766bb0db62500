"""Clients of a running service (HTTP, Walrus, Rog), and the JSON Lines format of export and import."""
