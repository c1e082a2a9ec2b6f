"""The page's own files from the package, each with its content type.

A name that is not in the table is not served, whatever is on disk.
"""

from functools import cache
from typing import Final

from twinbus import page
from twinbus.server.http.access import AUTHORIZATION
from twinbus.server.http.exchange import Request, Response
from twinbus.server.http.page.answers import HEADERS

_HTML: Final = "text/html"


def is_for_browser(request: Request) -> bool:
    """Does a person look at `/`?  SDKs say which API they speak, and who they are."""
    return (
        request.path == "/"
        and request.method in ("GET", "HEAD")
        and "api-version" not in request.query
        and AUTHORIZATION not in request.headers
        and _HTML in request.headers.get("accept", "").lower()
    )


def is_file(name: str) -> bool:
    return name in page.FILES


def answer_file(name: str) -> Response:
    return Response(200, _read(name), page.FILES[name], HEADERS)


@cache
def _read(name: str) -> bytes:
    return page.read(name)
