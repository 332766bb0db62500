"""Walrus and Rog wire protocols, without I/O."""
