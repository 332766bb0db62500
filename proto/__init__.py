"""Definitions shared by all processes of the service, and by processes and the files they write.

Messages, control messages, error codes, limits, the topic grammar, and the frame that holds a batch on disk.
Sockets are opened by one module only: `proto.ipc.transport` owns ZeroMQ and the control sockets.
"""

__version__ = "0.1.0"
