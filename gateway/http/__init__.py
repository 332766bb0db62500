"""HTTP and WebSocket as bytes and values. No sockets of its own, and nothing of topics."""
