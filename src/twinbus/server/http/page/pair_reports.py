"""Reports of paired clients: what each knows about its pair, in memory, for a minute.

    PUT     /$pairs/{id}    a report; needs Send on the namespace: 204
    GET     /$pairs         those of the namespace, for viewers (viewers.py)

A report that is not repeated is forgotten.  Clients can send anything, so text is cut, numbers are
checked, and unknown fields are dropped.  The server itself relies on none of it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from twinbus.clock import Clock
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange, QuotaExceeded, ServiceError
from twinbus.gateway.access.shared_access import SEND
from twinbus.limits import PAIR_REPORT_BYTES_MAX, PAIR_REPORTS_BYTES_MAX, PAIR_REPORTS_MAX
from twinbus.metered import iso
from twinbus.server.http.access import Claim, HttpAccess
from twinbus.server.http.exchange import Request, Response, read_json
from twinbus.server.http.page.answers import HEADERS, json_answer, not_allowed, refusal
from twinbus.server.http.page.scope import PageScope

PAIRS: Final = "$pairs"
KEPT_MS: Final = 60_000
ID_CHARS_MAX: Final = 64
SHOWN_BYTES_MAX: Final = 524_288  # of a document that has more than reports in it

_NAME_CHARS_MAX: Final = 260
_TEXT_CHARS_MAX: Final = 256
_LIST_MAX: Final = 500
_COUNT_MAX: Final = 1 << 53  # what a browser's numbers can tell apart
# What a report says, and what may stand there.
_REPORT: Final = {"primary": str, "secondary": str, "client": str, "fault": str}
_ENTITY: Final = {
    "name": str,
    "state": str,
    "since": str,
    "forced": bool,
    "sent_to_primary": int,
    "sent_to_backlog": int,
    "last_error": str,
}
_BACKLOG_QUEUE: Final = {
    "queue": str,
    "in_rotation": bool,
    "moved": int,
    "dead_lettered": int,
    "held": int,
    "strangers": int,
}
_STRANGERS: Final = {"primary": str, "count": int}
_STRANGERS_MAX: Final = 10  # other primaries that a backlog queue has messages of


class _Report(NamedTuple):
    document: dict[str, Any]
    size_bytes: int
    utc_ms: int
    mono_ms: int


class PairReports:
    """All reports of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # In the order in which they came, by namespace and id.
        self._reports: dict[tuple[str, str], _Report] = {}
        self._size_bytes = 0
        self.changes = 0  # how often anything was said that had not been said before

    def put(self, namespace: str, report_id: str, document: dict[str, Any]) -> None:
        """Take a report in place of the one with its id; QuotaExceeded when there are too many."""
        self._forget_old()
        key = (namespace.lower(), report_id)
        before = self._reports.get(key)
        size_bytes = len(json.dumps(document))
        others_bytes = self._size_bytes - (before.size_bytes if before else 0)
        is_full = before is None and len(self._reports) >= PAIR_REPORTS_MAX
        if is_full or others_bytes + size_bytes > PAIR_REPORTS_BYTES_MAX:
            raise QuotaExceeded(f"At most {PAIR_REPORTS_MAX} paired clients can be shown.")
        if before is None or before.document != document:
            self.changes += 1
        self._reports.pop(key, None)
        now = self._clock.now()
        self._reports[key] = _Report(document, size_bytes, now.utc_ms, now.mono_ms)
        self._size_bytes = others_bytes + size_bytes

    def documents(self, namespace: str, bytes_max: int = SHOWN_BYTES_MAX) -> list[dict[str, Any]]:
        """What the clients of a namespace have said, the latest first, as much as has room."""
        self._forget_old()
        now_ms, name = self._clock.now().mono_ms, namespace.lower()
        found: list[dict[str, Any]] = []
        for (owner, report_id), report in reversed(self._reports.items()):
            if owner != name:
                continue
            bytes_max -= report.size_bytes
            if bytes_max < 0:
                break
            age_s = (now_ms - report.mono_ms) / 1_000
            reported = {"reported": iso(report.utc_ms), "age_s": age_s}
            found.append({"id": report_id, **reported, **report.document})
        return found

    def _forget_old(self) -> None:
        oldest_ms = self._clock.now().mono_ms - KEPT_MS
        while self._reports:
            key, report = next(iter(self._reports.items()))
            if report.mono_ms > oldest_ms:
                return
            del self._reports[key]
            self._size_bytes -= report.size_bytes
            self.changes += 1


def is_about_pairs(segments: list[str]) -> bool:
    return segments[0].lower() == PAIRS


class PairRequests:
    """Answers everything about pairs."""

    def __init__(self, access: HttpAccess, scope: PageScope, reports: PairReports) -> None:
        self._access = access
        self._scope = scope
        self._reports = reports

    def claim(self, request: Request) -> Claim | None:
        return Claim(SEND, "") if request.method == "PUT" else None

    async def answer(self, request: Request) -> Response:
        try:
            segments = request.segments()
            if len(segments) == 1:
                return self._list(request)
            if len(segments) == 2:
                return self._put(request, segments[1])
        except ServiceError as error:
            return refusal(error)
        reason = "There is nothing here; reports are at /$pairs and /$pairs/ID."
        return json_answer(404, {"error": "EntityNotFound", "reason": reason})

    def _list(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return not_allowed("GET, HEAD")
        namespace, _ = self._scope.look(request)
        found = self._reports.documents(namespace.name, PAIR_REPORTS_BYTES_MAX)
        return json_answer(200, {"pairs": found})

    def _put(self, request: Request, report_id: str) -> Response:
        if request.method != "PUT":
            return not_allowed("PUT")
        namespace = self._access.authorize(request, SEND, "")
        if len(request.body) > PAIR_REPORT_BYTES_MAX:
            raise ArgumentOutOfRange(f"A report can have at most {PAIR_REPORT_BYTES_MAX} bytes.")
        if not 1 <= len(report_id) <= ID_CHARS_MAX or not report_id.isprintable():
            raise ArgumentInvalid(f"The id of a report must have 1 to {ID_CHARS_MAX} characters.")
        self._reports.put(namespace.name, report_id, read_report(request.body))
        return Response(204, b"", headers=HEADERS)


def read_report(body: bytes) -> dict[str, Any]:
    """A report with every field in its place; what a newer client says beyond it is left out."""
    given = read_json(body)
    if not isinstance(given, dict) or not given.get("primary") or not given.get("secondary"):
        raise ArgumentInvalid("A report must be a JSON object with 'primary' and 'secondary'.")
    report = _fields(given, _REPORT)
    report["syphon_running"] = given.get("syphon_running") is True
    report["entities"] = _list(given, "entities", _ENTITY)
    report["backlog_queues"] = _list(given, "backlog_queues", _BACKLOG_QUEUE)
    for queue, said in zip(
        report["backlog_queues"], given.get("backlog_queues") or [], strict=False
    ):
        queue["strangers_of"] = _list(said, "strangers_of", _STRANGERS)[:_STRANGERS_MAX]
    return report


def _list(given: dict[str, Any], name: str, kinds: Mapping[str, type]) -> list[dict[str, Any]]:
    entries = given.get(name) or []
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise ArgumentInvalid(f"'{name}' of a report must be a list of JSON objects.")
    return [_fields(each, kinds) for each in entries[:_LIST_MAX]]


def _fields(given: dict[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    return {name: _field(name, given.get(name), kind) for name, kind in kinds.items()}


def _field(name: str, value: object, kind: type) -> object:
    if value is None:
        return None
    if type(value) is not kind:
        raise ArgumentInvalid(f"'{name}' of a report has the wrong type.")
    if isinstance(value, str):
        # JSON can spell half a surrogate pair, which nobody can encode again.
        text = value.encode("utf-8", "replace").decode()
        return text[: _NAME_CHARS_MAX if name in ("name", "queue") else _TEXT_CHARS_MAX]
    if isinstance(value, int) and not 0 <= value <= _COUNT_MAX:
        raise ArgumentOutOfRange(f"'{name}' of a report is not a count.")
    return value
