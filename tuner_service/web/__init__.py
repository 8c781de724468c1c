"""What requests go through before and after routes: ASGI layers, and the server."""
