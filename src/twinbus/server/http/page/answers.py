"""Answers to the page's requests: JSON, and headers that restrict the browser.

They allow only the page's own scripts and this server's addresses, no framing and no caching.
"""

from typing import Final

from twinbus.errors import ArgumentOutOfRange, ServerBusy, ServiceError
from twinbus.limits import THROTTLE_ADVICE_S
from twinbus.server.http.exchange import Request, Response, json_response

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


def json_answer(
    status: int, document: object, headers: tuple[tuple[str, str], ...] = ()
) -> Response:
    return json_response(status, document, (*HEADERS, *headers))


def refusal(error: ServiceError) -> Response:
    """What is wrong, in one word and in one sentence."""
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, ServerBusy):
        headers = (("Retry-After", str(THROTTLE_ADVICE_S)),)
    document = {"error": type(error).__name__, "reason": str(error)}
    # No WWW-Authenticate: a browser must not ask for a password of its own.
    return json_answer(error.http_status, document, headers)


def not_allowed(allowed: str) -> Response:
    document = {"error": "MethodNotAllowed", "reason": f"Allowed are {allowed}."}
    return json_answer(405, document, (("Allow", allowed),))


def query_number(request: Request, name: str, default: int, lowest: int, highest: int) -> int:
    """A whole number of the query."""
    text = request.query.get(name, "")
    if not text:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not lowest <= number <= highest:
        raise ArgumentOutOfRange(f"{name} must be a whole number from {lowest} to {highest}.")
    return number
