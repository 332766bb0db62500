"""Copies of a data directory, the way back, and commands on a stopped one."""
