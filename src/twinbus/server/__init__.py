"""The shells: sockets, AMQP endpoints, HTTP.  asyncio lives here."""

__all__: list[str] = []
