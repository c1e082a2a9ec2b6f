"""Entity management over HTTP: the Atom documents that ServiceBusAdministrationClient exchanges.

    /$namespaceinfo                                    GET
    /$Resources/queues, /$Resources/topics             GET   a page: $skip, $top, $filter
    /{queue or topic}                                  GET, PUT, DELETE
    /{topic}/subscriptions                             GET   a page
    /{topic}/subscriptions/{subscription}              GET, PUT, DELETE
    /{topic}/subscriptions/{subscription}/rules        GET   a page
    /{topic}/subscriptions/{subscription}/rules/{rule} GET, PUT, DELETE

PUT creates (201); with `If-Match: *` it updates (200).  Every request needs the Manage right on
the entity it names, checked before anything is read, and on the entity it forwards to.  Names are
only ever text, and keys in the namespace.  Changes are answered when they are durable.
"""

import re
from http import HTTPStatus
from typing import Final
from urllib.parse import quote
from xml.etree.ElementTree import Element

from twinbus.clock import Clock
from twinbus.entities.descriptions import QueueDescription, subscription_path
from twinbus.entities.rule_descriptions import CORRELATION, SQL
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServiceError,
    Unauthorized,
)
from twinbus.gateway.access.shared_access import MANAGE
from twinbus.gateway.faults.faults import Faults
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.gateway.namespaces.views import QueueView, RuleView
from twinbus.limits import PAGE_COUNT_MAX
from twinbus.server.http.access import Claim, HttpAccess
from twinbus.server.http.atom.entity_documents import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    DescriptionReader,
    entity_entry,
)
from twinbus.server.http.atom.feeds import (
    AtomEntry,
    feed,
    local_name,
    namespace_entry,
    read_content,
)
from twinbus.server.http.atom.list_filters import read_filter
from twinbus.server.http.atom.rule_documents import DEFAULT_RULE, RULE, read_rule, rule_entry
from twinbus.server.http.exchange import Request, Response, error_response
from twinbus.server.http.xml_reader import whole_number

PAGE_COUNT_DEFAULT: Final = 100  # what the SDKs ask for
SKIP_MAX: Final = 1_000_000_000
EVERYTHING: Final = 1 << 62
NEWEST: Final = "9999-12"  # who names no api-version, or one of the future, sees all there is

_ENTRY_TYPE: Final = "application/atom+xml; type=entry; charset=utf-8"
_FEED_TYPE: Final = "application/atom+xml; type=feed; charset=utf-8"
_METHODS: Final = "GET, HEAD, PUT, DELETE"
_API_VERSION: Final = re.compile(r"\d{4}-\d{2}(-\d{2})?(-preview)?", re.ASCII)

# Whose token is asked for beyond the request's own, in which header.
_FORWARD_HEADERS: Final = (
    ("forward_to", "servicebussupplementaryauthorization"),
    ("forward_dead_lettered_messages_to", "servicebusdlqsupplementaryauthorization"),
)

# What Service Bus says beside the status, where the status alone does not tell.
_INVALID_OPERATION: Final = 40301
_TOO_MANY_SQL_FILTERS: Final = 40501
_TOO_MANY_CORRELATION_FILTERS: Final = 40502
_TOO_MANY_SUBSCRIPTIONS: Final = 40503


class AtomRouter:
    """Answers everything about entities."""

    def __init__(self, access: HttpAccess, clock: Clock, faults: Faults | None = None) -> None:
        self._access = access
        self._clock = clock
        self._faults = faults

    def claim(self, request: Request) -> Claim | None:
        return Claim(MANAGE, "/".join(request.segments()))

    async def answer(self, request: Request) -> Response:
        path = "/".join(request.segments())
        namespace = self._access.authorize(request, MANAGE, path)
        if request.method not in ("GET", "HEAD", "PUT", "DELETE"):
            return error_response(405, "The method is not allowed.", (("Allow", _METHODS),))
        if "/rules" not in path.lower():  # rules are for commands, which are asked about later
            namespace.gateway.check_management(namespace.prefix)
        if self._faults is not None and self._faults.active:
            error = self._faults.management_refusal(namespace.prefix + path)
            if error is not None:
                raise error
        call = _EntityRequest(self._access, namespace, request, self._clock.now().utc_ms)
        metrics = namespace.gateway.metrics.of_namespace(namespace.name)
        try:
            response = await call.answer(path)
        except ServiceError as error:
            metrics.answered(error)
            if isinstance(error, InvalidOperation):
                return error_response(403, str(error), sub_code=_INVALID_OPERATION)
            if isinstance(error, QuotaExceeded):
                return error_response(403, str(error), sub_code=call.quota)
            raise
        metrics.answered(None)
        if response.status < HTTPStatus.BAD_REQUEST:
            entity = metered_entity(namespace, path)
            namespace.gateway.meter.of(namespace.name, entity).managed_once()
        return response


def metered_entity(namespace: Namespace, path: str) -> str:
    """The entity that a request about this path is billed to; "" is the namespace itself."""
    segments = path.split("/")
    lowered = path.lower().split("/")
    if not path or path.startswith("$"):
        return ""
    if "subscriptions" in lowered[1:]:
        place = lowered.index("subscriptions", 1)
        topic, below = "/".join(segments[:place]), segments[place + 1 :]
        path = subscription_path(topic, below[0]) if below else topic
    entity = namespace.gateway.directory.find(namespace.prefix + path)
    return path if entity is None else namespace.path_of(entity)  # None: it was deleted just now


class _EntityRequest:
    """One request that may be answered."""

    def __init__(
        self, access: HttpAccess, namespace: Namespace, request: Request, now_utc_ms: int
    ) -> None:
        self._access = access
        self._namespace = namespace
        self._request = request
        self._now_utc_ms = now_utc_ms
        # Where the client reached us, as it says itself; it is only shown back to it.
        self._base = f"https://{request.headers.get('host', 'localhost')}"
        self._version = _api_version(request)
        self.quota = 0  # the sub code if what is asked for is one too many

    async def answer(self, path: str) -> Response:
        segments = path.split("/")  # `%2F` divides as `/` does, for names as for the claim
        lowered = path.lower().split("/")
        if lowered == ["$namespaceinfo"]:
            return self._answer_about_namespace()
        if lowered in (["$resources", "queues"], ["$resources", "topics"]):
            return await self._list(path, lowered[1])
        if not path or path.startswith("$"):
            raise EntityNotFound("There is no such resource.")
        if "subscriptions" not in lowered[1:]:
            return await self._answer_about_entity(path)
        place = lowered.index("subscriptions", 1)
        topic, below = "/".join(segments[:place]), segments[place + 1 :]
        if not below:
            return await self._list(path, "subscriptions", topic)
        if len(below) == 1:
            return await self._answer_about_subscription(topic, below[0])
        if below[1].lower() == "rules" and len(below) == 2:
            return await self._list(path, "rules", topic, below[0])
        if below[1].lower() == "rules" and len(below) == 3:
            return await self._answer_about_rule(topic, below[0], below[2])
        raise EntityNotFound("There is no such resource.")

    # -- the namespace and lists -----------------------------------------------------------------

    def _answer_about_namespace(self) -> Response:
        if self._request.method not in ("GET", "HEAD"):
            return _read_only()
        namespace = self._namespace
        entry = namespace_entry(namespace.name, namespace.created_utc_ms, namespace.limits.name)
        return self._entry(200, entry)

    async def _list(
        self, path: str, kind: str, topic: str = "", subscription: str = ""
    ) -> Response:
        if self._request.method not in ("GET", "HEAD"):
            return _read_only()
        skip = self._page_number("$skip", 0, SKIP_MAX)
        top = self._page_number("$top", PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX)
        filter_text = self._request.query.get("$filter", "")
        # One more than asked for tells whether there is a next page.
        if filter_text:
            passes = read_filter(filter_text)
            entire = await self._views(kind, topic, subscription, 0, EVERYTHING)
            views = [view for view in entire if passes(view)][skip : skip + top + 1]
        else:
            views = await self._views(kind, topic, subscription, skip, top + 1)
        next_query = f"$skip={skip + top}&$top={top}" if len(views) > top else ""
        if next_query and filter_text:
            next_query += f"&$filter={quote(filter_text)}"
        entries = [self._written(view, topic, subscription) for view in views[:top]]
        page = feed(path, self._now_utc_ms, entries, self._base, next_query)
        return Response(200, page.encode(), _FEED_TYPE)

    async def _views(
        self, kind: str, topic: str, subscription: str, skip: int, top: int
    ) -> list[QueueView | RuleView]:
        namespace = self._namespace
        if kind == "queues":
            return [*await namespace.list_queues(skip, top)]
        if kind == "topics":
            return [*await namespace.list_topics(skip, top)]
        if kind == "subscriptions":
            return [*await namespace.list_subscriptions(topic, skip, top)]
        return [*await namespace.list_rules(topic, subscription, skip, top)]

    def _page_number(self, name: str, default: int, ceiling: int) -> int:
        text = self._request.query.get(name)
        if text is None:
            return default
        number = whole_number(name, text)
        if number > ceiling:
            raise ArgumentOutOfRange(f"{name} is {number}; at most {ceiling} is allowed.")
        return number

    # -- entities --------------------------------------------------------------------------------

    async def _answer_about_entity(self, name: str) -> Response:
        namespace = self._namespace
        if self._request.method == "DELETE":
            await namespace.delete_entity(name)
            return Response(200, b"")
        if self._request.method != "PUT":
            return self._entry(200, self._written(await namespace.get_entity(name)))
        # A missing entity matters more than a bad document; one that is being made is not missing.
        await namespace.settled(name)
        current = namespace.find_entity(name).description if self._is_update() else None
        content = read_content(self._request.body, (QUEUE, TOPIC))
        reader = DescriptionReader(self._version, self._now_utc_ms, current)
        view: QueueView
        if local_name(content) == QUEUE:
            queue = reader.queue(content)
            self._authorize_forwarding(queue)
            if current is None:
                view = await namespace.create_queue(name, queue)
            else:
                view = await namespace.update_queue(name, queue)
        elif current is None:
            view = await namespace.create_topic(name, reader.topic(content))
        else:
            view = await namespace.update_topic(name, reader.topic(content))
        return self._entry(201 if current is None else 200, self._written(view))

    async def _answer_about_subscription(self, topic: str, name: str) -> Response:
        namespace = self._namespace
        if self._request.method == "DELETE":
            await namespace.delete_subscription(topic, name)
            return Response(200, b"")
        if self._request.method != "PUT":
            return self._entry(200, self._written(await namespace.get_subscription(topic, name)))
        self.quota = _TOO_MANY_SUBSCRIPTIONS
        await namespace.settled(subscription_path(topic, name))
        namespace.find_topic(topic)
        current = None
        if self._is_update():
            current = namespace.find_subscription(topic, name).description
        content = read_content(self._request.body, (SUBSCRIPTION,))
        reader = DescriptionReader(self._version, self._now_utc_ms, current)
        subscription = reader.subscription(content)
        self._authorize_forwarding(subscription)
        if current is None:
            rule = _default_rule(content)
            view = await namespace.create_subscription(
                topic, name, subscription, None if rule is None else read_rule(rule, "")
            )
            return self._entry(201, self._written(view))
        view = await namespace.update_subscription(topic, name, subscription)
        return self._entry(200, self._written(view))

    async def _answer_about_rule(self, topic: str, subscription: str, name: str) -> Response:
        namespace = self._namespace
        if self._request.method == "DELETE":
            await namespace.delete_rule(topic, subscription, name)
            return Response(200, b"")
        if self._request.method != "PUT":
            view = await namespace.get_rule(topic, subscription, name)
            return self._entry(200, self._written(view, topic, subscription))
        await namespace.settled(subscription_path(topic, subscription))
        namespace.find_subscription(topic, subscription)
        is_update = self._is_update()
        if is_update:
            name = (await namespace.get_rule(topic, subscription, name)).name  # in its own spelling
        rule = read_rule(read_content(self._request.body, (RULE,)), name)
        self.quota = {SQL: _TOO_MANY_SQL_FILTERS, CORRELATION: _TOO_MANY_CORRELATION_FILTERS}.get(
            rule.filter.kind, 0
        )
        if is_update:
            view = await namespace.update_rule(topic, subscription, rule)
        else:
            view = await namespace.create_rule(topic, subscription, rule)
        return self._entry(200 if is_update else 201, self._written(view, topic, subscription))

    # -- what they share -------------------------------------------------------------------------

    def _is_update(self) -> bool:
        match = self._request.headers.get("if-match")
        if match is not None and match.strip() != "*":
            raise ArgumentInvalid("If-Match must be * (update whatever is there).")
        return match is not None

    def _authorize_forwarding(self, description: QueueDescription) -> None:
        """Who makes an entity forward must be allowed to manage the target too.

        Where there is a token for the target, it must hold; else the request's own must.
        """
        for attribute, header in _FORWARD_HEADERS:
            target: str | None = getattr(description, attribute)
            if target is None:
                continue
            if header in self._request.headers:
                opened = self._access.authorize(self._request, MANAGE, target, header)
            else:
                opened = self._access.authorize(self._request, MANAGE, target)
            if opened is not self._namespace:
                raise Unauthorized("The token for the forward target is for another namespace.")

    def _written(
        self, view: QueueView | RuleView, topic: str = "", subscription: str = ""
    ) -> AtomEntry:
        if isinstance(view, RuleView):
            return rule_entry(view, topic, subscription)
        return entity_entry(view, self._base, self._version)

    def _entry(self, status: int, entry: AtomEntry) -> Response:
        return Response(status, entry.written(self._base).encode(), _ENTRY_TYPE)


def _read_only() -> Response:
    return error_response(405, "The method is not allowed.", (("Allow", "GET, HEAD"),))


def _default_rule(content: Element) -> Element | None:
    """The rule that a new subscription gets instead of `$Default`."""
    return next((child for child in content if local_name(child) == DEFAULT_RULE), None)


def _api_version(request: Request) -> str:
    version = request.query.get("api-version")
    if not version:
        return NEWEST
    if _API_VERSION.fullmatch(version) is None:
        raise ArgumentInvalid(f"'{version[:64]}' is not an api-version; write one such as 2021-05.")
    return version
