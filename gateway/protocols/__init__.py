"""Walrus and Rog over TCP, as far as sockets and topics go; their bytes are in `proto.wire`."""
