"""Long-lived responses: event streams, WebSocket commands, watch sessions, job streams. `gateway.http` encodes the
bytes on the wire.
"""
