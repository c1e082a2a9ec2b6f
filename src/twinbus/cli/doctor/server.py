"""What `twinbus doctor` looks at over the network: who has the ports, and whether a server answers.

Asks for what anybody may ask for (`GET /health`).  With the key it is given, it opens a connection
and asks what the server's deployment survives.
"""

import asyncio
import errno
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final

import twinbus
from twinbus.cli.connecting import open_connection
from twinbus.cli.doctor.findings import BAD, OK, WARN, Finding
from twinbus.client.connection_string import ConnectionString
from twinbus.client.http import REFUSED, HttpClient
from twinbus.clock import SystemClock
from twinbus.errors import TwinbusError
from twinbus.gateway.health.survival import LOST

ASK_S_MAX: Final = 3.0
SKEW_S_GOOD: Final = 60
SKEW_S_MAX: Final = 300  # tokens of clients live so long at least


def look_at_ports(host: str, ports: Sequence[int]) -> Iterator[Finding]:
    for port in ports:
        yield _port(host, port)


def _port(host: str, port: int) -> Finding:
    check = f"port {port}"
    choose = "choose another with `twinbus serve --port`, or stop what uses it"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family):
            return Finding(check, OK, "free")
    except PermissionError:
        return Finding(check, BAD, "not allowed for this user", "choose one above 1023 with --port")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return Finding(check, BAD, f"{host} cannot be used ({error.strerror})", "check --host")
    answer = ask_health(host, port, None)
    if answer is None:
        return Finding(check, WARN, "in use by something other than twinbus", choose)
    return Finding(check, OK, f"twinbus {answer.get('version', '(an early version)')} answers")


def ask_health(host: str, port: int | None, tls: ssl.SSLContext | None) -> dict[str, Any] | None:
    """What a twinbus says of its health, with the `date` it has; None if it is none."""
    connection: http.client.HTTPConnection
    if tls is None:
        connection = http.client.HTTPConnection(host, port, timeout=ASK_S_MAX)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=ASK_S_MAX, context=tls)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        document = json.loads(response.read(65_536))
        if not isinstance(document, dict) or "twinbus" not in str(document.get("message")):
            return None
        return {**document, "date": response.headers.get("Date")}
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def look_at_server(text: str) -> Iterator[Finding]:
    try:
        target = ConnectionString.parse(text)
    except TwinbusError as error:
        reason, _, fix = str(error).partition("; ")
        yield Finding("connection string", BAD, reason, fix)
        return
    yield Finding("connection string", OK, f"{target.key_name} at {target.authority}")
    try:
        product = asyncio.run(_product(text))
    except TwinbusError as error:
        reason, _, fix = str(error).partition("; ")
        fix = fix or "check the key name and key: `twinbus env` prints those of a running server"
        yield Finding("server", BAD, reason, fix)
        return
    if product != twinbus.PRODUCT_NAME:
        yield Finding("server", OK, "it answers, but is not a twinbus")
        return
    tls = None if target.development_emulator else ssl.create_default_context()
    yield from _health(ask_health(target.host, target.port, tls))
    yield from _survival(_ask_survival(text))


async def _product(text: str) -> str | None:
    async with await open_connection(text) as connection:
        return connection.product


def _health(answer: dict[str, Any] | None) -> Iterator[Finding]:
    if answer is None:
        fix = "allow HTTP to the same port: management and /health need it"
        yield Finding("server", WARN, "it answers over AMQP, but not over HTTP", fix)
        return
    version, status = answer.get("version"), answer.get("status")
    found = f"twinbus {version}, {status}"
    if status != "healthy":
        fix = "`GET /health?detail` and `twinbus status` show which part is unhealthy"
        yield Finding("server", BAD if status == "unhealthy" else WARN, found, fix)
    elif version != twinbus.__version__:
        fix = f"this is {twinbus.__version__}: use the same version on both sides"
        yield Finding("server", WARN, found, fix)
    else:
        yield Finding("server", OK, found)
    yield _skew(answer.get("date"))


# --- what it survives -----------------------------------------------------------------------------


def _ask_survival(text: str) -> list[dict[str, str]]:
    """What the server says that its deployment survives; nothing if it does not say."""
    try:
        status, answer = HttpClient(text).exchange("GET", "/$page/state?top=1", None, {})
        found = json.loads(answer).get("survives", []) if status < REFUSED else []
    except (TwinbusError, ValueError, AttributeError):
        return []
    return [each for each in found if isinstance(each, dict)]


def _survival(outcomes: list[dict[str, str]]) -> Iterator[Finding]:
    """A warning where messages can be lost or another deployment would do better."""
    for each in outcomes:
        fix, beyond, verdict = each.get("fix", ""), each.get("beyond", ""), each.get("verdict", "")
        found = f"{verdict}: {each.get('what', '')}"
        advice = "; ".join(text for text in (fix, beyond) if text)
        state = WARN if fix or verdict == LOST else OK
        yield Finding(each.get("failure", ""), state, found, advice)


def _skew(date: str | None) -> Finding:
    try:
        there_s = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return Finding("server clock", WARN, "not known", "")
    skew_s = abs(there_s - SystemClock().now().utc_ms / 1_000)
    if skew_s > SKEW_S_GOOD:
        state = BAD if skew_s > SKEW_S_MAX else WARN
        fix = "set both clocks, preferably by NTP: tokens expire by them"
        return Finding("server clock", state, f"{skew_s:,.0f} s off from this one", fix)
    return Finding("server clock", OK, "the same as here")
