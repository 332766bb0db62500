"""What two processes, or a process and a file, agree on.

Messages, control messages, error codes, limits, the topic grammar and the frame that holds a batch on disk.
Nothing here does I/O, `transport` excepted: it is the one module that touches ZeroMQ and the control sockets.
"""

__version__ = "0.1.0"
