"""Checkpoints: writes records of the log to segments and a catalog, and loads them. `shardd.recovery` reads the log."""
