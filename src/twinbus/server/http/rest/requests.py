"""The REST data plane: messages in and out over plain HTTP requests.

    POST    /{entity}/messages                      send one, or a batch as JSON: 201
    POST    /{entity}/messages/head?timeout=        receive in peek-lock mode: 201, or 204 for none
    DELETE  /{entity}/messages/head?timeout=        receive and delete: 200, or 204 for none
    DELETE  /{entity}/messages/{id}/{lock token}    complete: 200
    PUT     /{entity}/messages/{id}/{lock token}    unlock: 200
    POST    /{entity}/messages/{id}/{lock token}    renew the lock: 200

A missing entity is 410 here and a lost lock 404, as Service Bus has it.  Nothing is looked at
before the token is.  A request that waits ends with its timeout, its peer or the server; a message
that was locked for a peer that is gone is free again at once.
"""

import secrets
from typing import Final, cast
from urllib.parse import quote
from uuid import UUID

from twinbus.clock import Clock
from twinbus.entities.commands import (
    ABANDON,
    COMPLETE,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    RenewLocks,
    Send,
    Settle,
)
from twinbus.entities.facts import MAIN
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    MessageLockLost,
    MessageSizeExceeded,
    RemoteProtocolError,
    ServiceError,
)
from twinbus.gateway.access.shared_access import LISTEN, SEND
from twinbus.gateway.counting.counters import measure
from twinbus.gateway.directory.addresses import parse_address
from twinbus.limits import HTTP_BODY_BYTES_MAX, REST_WAIT_S_MAX
from twinbus.links.request import ask
from twinbus.message.incoming import new_message
from twinbus.message.lock_tokens import lock_token, parse_lock_token
from twinbus.message.message_id import MessageIds
from twinbus.server.http.access import Claim, HttpAccess
from twinbus.server.http.addressed_entity import AddressedEntity, find_addressed
from twinbus.server.http.exchange import Request, Response, error_response
from twinbus.server.http.rest.messages import BATCH_TYPE, read_batch, read_message
from twinbus.server.http.rest.receiving import WaitingRequest
from twinbus.server.http.rest.times import http_date

_MESSAGES: Final = "messages"
_HEAD: Final = "head"
_XML: Final = "application/xml; charset=utf-8"

# How many segments come behind the entity's path tells what is wanted.
_SENDS: Final = 1
_RECEIVES: Final = 2
_SETTLES: Final = 3
_RIGHTS: Final = {_SENDS: SEND, _RECEIVES: LISTEN, _SETTLES: LISTEN}


def is_about_messages(method: str, segments: list[str]) -> bool:
    """Is this a request of the data plane?  An entity may be named `messages` all the same."""
    lowered = [segment.lower() for segment in segments]
    if lowered[-1] == _MESSAGES:
        return len(segments) > 1 and method == "POST"
    if lowered[-2:] == [_MESSAGES, _HEAD]:
        return len(segments) > 2 and method in ("POST", "DELETE")
    if lowered[-4:-2] == ["subscriptions", _MESSAGES] and lowered[-2] == "rules":
        return False  # a rule of a subscription that is named so
    return len(segments) > 3 and lowered[-3] == _MESSAGES and method in ("POST", "PUT", "DELETE")


def _split(segments: list[str]) -> tuple[int, str]:
    """What a request of the data plane wants, and of which entity."""
    if segments[-1].lower() == _MESSAGES:
        what = _SENDS
    elif segments[-1].lower() == _HEAD and segments[-2].lower() == _MESSAGES:
        what = _RECEIVES
    else:
        what = _SETTLES
    return what, "/".join(segments[:-what])


class RestRouter:
    """Answers the requests that `is_about_messages`."""

    def __init__(self, access: HttpAccess, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._message_ids = MessageIds(secrets.randbits(64))

    async def answer(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except EntityNotFound as error:
            return error_response(410, str(error))
        except MessageLockLost as error:
            return error_response(404, str(error))

    def claim(self, request: Request) -> Claim | None:
        what, path = _split(request.segments())
        return Claim(_RIGHTS[what], parse_address(path).path)

    async def _answer(self, request: Request) -> Response:
        segments = request.segments()
        what, path = _split(segments)
        addressed = self._find(request, _RIGHTS[what], path)
        if what == _SENDS:
            answer = self._send(request, addressed)
        elif what == _RECEIVES:
            answer = self._receive(request, addressed)
        else:
            answer = self._settle(request, addressed, segments[-1])
        try:
            response = await answer
        except ServiceError as error:
            addressed.entity.metrics.answered(error)
            raise
        addressed.entity.metrics.answered(None)
        return response

    def _find(self, request: Request, right: str, path: str) -> AddressedEntity:
        address = parse_address(path)
        namespace = self._access.authorize(request, right, address.path)
        if address.is_management:
            raise EntityNotFound("There are no messages to send or receive at a management node.")
        return find_addressed(namespace, address)

    # -- sending -----------------------------------------------------------------------------

    async def _send(self, request: Request, addressed: AddressedEntity) -> Response:
        if addressed.address.subqueue != MAIN:
            raise InvalidOperation("Nothing can be sent to a dead-letter queue.")
        if addressed.entity.kind == "subscription":
            raise InvalidOperation("Nothing can be sent to a subscription; send to its topic.")
        addressed.entity.check_sendable()
        now_ms = self._clock.now().utc_ms
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == BATCH_TYPE:
            encoded = read_batch(request.body, now_ms)
        else:
            encoded = [read_message(request.headers, request.named_headers, request.body, now_ms)]
        allowed = addressed.entity.description.max_message_size_kilobytes * 1_024
        size, size_max = sum(map(len, encoded)), min(allowed, HTTP_BODY_BYTES_MAX)
        if size > size_max:
            raise MessageSizeExceeded(
                f"The message of {size} bytes exceeds the limit of {size_max} bytes."
            )
        ttl_ms_max = addressed.entity.description.default_time_to_live_ms
        keys = addressed.entity.needs_keys
        try:
            messages = [new_message(data, self._message_ids, ttl_ms_max, keys) for data in encoded]
        except RemoteProtocolError as error:
            raise ArgumentInvalid(f"The message cannot be stored: {error}") from None
        await ask(addressed.gateway, Send(addressed.entity.entity_id, messages))
        _, units, pings = measure(messages)
        addressed.entity.metrics.sent(len(messages) - pings, size)
        addressed.meter.sent(len(messages) - pings, units, pings)
        return Response(201, b"", _XML)

    # -- receiving ---------------------------------------------------------------------------

    async def _receive(self, request: Request, addressed: AddressedEntity) -> Response:
        mode = PEEK_LOCK if request.method == "POST" else RECEIVE_AND_DELETE
        if addressed.entity.kind == "topic":
            raise InvalidOperation("Nothing can be received from a topic, only subscriptions.")
        if addressed.entity.description.requires_session and addressed.address.subqueue == MAIN:
            raise InvalidOperation(
                "This entity requires sessions, which REST cannot receive from. Use AMQP."
            )
        wait_s = _read_timeout(request)
        waiting = WaitingRequest(addressed, mode)
        request.when_gone = waiting.give_up
        received = await waiting.wait(wait_s)
        if received is None:
            addressed.meter.received_nothing()
            return Response(204, b"", _XML)
        addressed.entity.metrics.delivered(1, received.size_bytes)
        addressed.meter.delivered([received.body], received.size_bytes)
        if mode != PEEK_LOCK:
            return received.response(200, {}, ())
        token = lock_token(received.sequence_number, received.grant)
        locked: dict[str, object] = {
            "LockToken": str(token),
            "LockedUntilUtc": http_date(received.locked_until_utc_ms),
        }
        host = request.headers.get("host", "localhost")
        path = quote(addressed.address.path)
        location = f"{request.scheme}://{host}/{path}/messages/{received.sequence_number}/{token}"
        response = received.response(201, locked, (("Location", location),))
        response.when_unsent = received.release
        return response

    # -- settling ----------------------------------------------------------------------------

    async def _settle(
        self, request: Request, addressed: AddressedEntity, token_text: str
    ) -> Response:
        """The lock token says which message; the id in front of it is for people."""
        try:
            token = UUID(token_text)
        except ValueError:
            raise ArgumentInvalid("The lock token is not a GUID.") from None
        lock = parse_lock_token(token)
        entity, subqueue = addressed.entity, addressed.address.subqueue
        if request.method == "POST":
            renew = RenewLocks(entity.entity_id, subqueue, [lock])
            [until_ms] = cast(list[int], await ask(addressed.gateway, renew))
            addressed.meter.managed_once()
            properties = f'{{"LockToken":"{token}","LockedUntilUtc":"{http_date(until_ms)}"}}'
            return Response(200, b"", _XML, (("BrokerProperties", properties),))
        outcome = COMPLETE if request.method == "DELETE" else ABANDON
        settle = Settle(entity.entity_id, subqueue, [lock], outcome)
        errors = cast(list[ServiceError | None] | None, await ask(addressed.gateway, settle))
        if errors is not None and errors[0] is not None:
            raise errors[0]
        entity.metrics.settled(outcome, 1)
        return Response(200, b"", _XML)


def _read_timeout(request: Request) -> float:
    text = request.query.get("timeout")
    if text is None:
        return REST_WAIT_S_MAX
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ArgumentOutOfRange("timeout must be a whole number of seconds.")
    return min(float(text), REST_WAIT_S_MAX)
