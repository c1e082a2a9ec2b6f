"""The port: connections, TLS, and who is on the other end."""
