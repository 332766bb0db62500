"""Histories of a real service: clients that record all they do, faults, and the verdict of the checker.

`recording` asks the service and writes each request down, `clients` decide what to ask, `bars` runs them beside faults
and has the result checked; `prove` is the command of `make prove`.
"""
