"""What was metered, over HTTP: JSON out (docs/operating/cost.md).

    GET     /$meter?from=2026-11-01&to=2026-12-01

Needs the Manage right on a namespace, and shows that namespace: a sum for each day, entity and
kind.  Without `from` or `to` it is everything before or after the other.  What was counted until
now is in it, durable or not.
"""

from typing import Final

from twinbus.errors import ArgumentInvalid
from twinbus.gateway.counting.meter_writer import Metering
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.metered import DAY_MS, parse_iso, summed
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.exchange import Request, Response, json_response
from twinbus.server.http.operations.operator_requests import OperatorRequests, not_allowed

METER: Final = "$meter"
END_OF_TIME_MS: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


def is_about_meter(segments: list[str]) -> bool:
    return segments[0].lower() == METER


class MeterRequests(OperatorRequests):
    """Answers everything about the meter."""

    def __init__(self, access: HttpAccess, metering: Metering) -> None:
        super().__init__(access)
        self._metering = metering

    async def answer_to(self, namespace: Namespace, request: Request) -> Response:
        if len(request.segments()) > 1:
            return json_response(
                404, {"error": "There is nothing here; metered usage is at /$meter."}
            )
        if request.method not in ("GET", "HEAD"):
            return not_allowed("GET, HEAD")
        from_ms = _moment(request, "from", 0)
        to_ms = _moment(request, "to", END_OF_TIME_MS)
        lines = await self._metering.read(from_ms, to_ms)
        name = namespace.name.lower()
        own = summed([line for line in lines if line.namespace.lower() == name], DAY_MS)
        return json_response(200, {"metered": [line.document() for line in own]})


def _moment(request: Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        return max(0, min(parse_iso(text), END_OF_TIME_MS))
    except ValueError:
        raise ArgumentInvalid(
            f"{name}={text[:64]} is not a time; write 2026-11-16 or 2026-11-16T07:00:00Z."
        ) from None
