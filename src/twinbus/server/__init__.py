"""The shells: sockets, AMQP endpoints, HTTP.  asyncio lives here."""
