"""Bytes that are kept: the frame of the log and of segments."""
