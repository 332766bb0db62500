"""Walrus and Rog as bytes, without I/O."""
