"""HTTP: connections, who may ask, WebSockets."""
