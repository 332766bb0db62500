"""Speaks to clients: HTTP and the line protocols. Records are kept by `shardd`, processes by `supervisor`."""
