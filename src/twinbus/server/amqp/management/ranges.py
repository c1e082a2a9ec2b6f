"""Answers with thousands of messages: encoded a slice at a time, then put together in one go.

Encoding a message takes a few microseconds, so all of an answer's together would hold up everybody
else on the loop.  Copying four megabytes takes a millisecond, so that is done only once.
"""

import asyncio
from typing import Final

from twinbus.entities.selections import Selected
from twinbus.message.outgoing import encode_overlaid
from twinbus.message.plain import DecodedMessage, listing_parts
from twinbus.server.amqp.management.answers import answer_selected, properties_of
from twinbus.server.amqp.request_node import RequestNode

SLICE_COUNT_MAX: Final = 1_024  # messages encoded in one turn of the loop


class RangeAnswer:
    """The answer to one browse of a range.  It is dropped if the client has gone by then."""

    def __init__(self, node: RequestNode, request: DecodedMessage, selected: Selected) -> None:
        self._node = node
        self._request = request
        self._selected = selected
        self._encoded: list[bytes] = []

    def go_on(self) -> None:
        """Encode the next slice; with the last one the answer goes out."""
        delivered = self._selected.delivered
        start = len(self._encoded)
        self._encoded += [
            encode_overlaid(each.message, each.body, 0)
            for each in delivered[start : start + SLICE_COUNT_MAX]
        ]
        if len(self._encoded) < len(delivered):
            asyncio.get_running_loop().call_soon(self.go_on)
            return
        status, body = answer_selected(self._selected)
        parts = listing_parts(body, "messages", self._encoded)
        self._node.respond_parts(self._request, properties_of(status, body), parts)
