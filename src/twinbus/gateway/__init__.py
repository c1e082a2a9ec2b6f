"""The gateway: namespaces, who may use them, and the way of a command to its partition."""
