"""No key, token or password is in anything that a server writes about a busy session.

Clients come with right keys and wrong ones, over AMQP and HTTP, and put keys where they do not
belong, so that refusals quote them.  Everything is logged, and everything is searched.
"""

import asyncio
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AccessRights, AuthorizationRule

from tests.interop.administration import connect
from tests.security.raw_amqp import RawConnection, Refused
from twinbus.client.connection_string import ConnectionString
from twinbus.client.sas import make_sas_token
from twinbus.clock import SystemClock
from twinbus.config import Identity, RuleConfig, store_identity
from twinbus.testing.server import ServerProcess

pytestmark = pytest.mark.feature("observe.logs")

ROOT = RuleConfig("Root", "namespace-primary-Kx7/+Qw=", "namespace-secondary-Zt4/+Rb=")
OTHER = RuleConfig("Root", "another-namespace-Ly2/+Ga=", "another-secondary-Ve6/+Hs=")
ENTITY_KEYS = (
    "ZW50aXR5LXByaW1hcnkta2V5LXdpdGgtMzItYnl0ZXM=",
    "ZW50aXR5LXNlY29uZGFyeS1rZXktb2YtMzItYnl0ZXM=",
)
WRONG_KEY = "a-wrong-key-Jm3/+Np="
WEB_TOKEN = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJyb2xlcyI6WyJTZW5kIl19.c2VjcmV0LXNpZ25hdHVyZQ"
KEYS = (
    ROOT.primary_key,
    ROOT.secondary_key,
    OTHER.primary_key,
    OTHER.secondary_key,
    *ENTITY_KEYS,
    WRONG_KEY,
)


@pytest.fixture(scope="module", params=["text", "json"])
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, list[str]]:
    """The format, all that was written, and the tokens that were shown."""
    data_dir = tmp_path_factory.mktemp("logged") / "data"
    data_dir.mkdir()
    store_identity(data_dir, Identity("first", (ROOT,)), Identity("second", (OTHER,)))
    arguments = ["--log-level", "debug", "--log-format", request.param]
    if request.param == "json":
        arguments += ["--brokers", "2"]
    with ServerProcess(data_dir, arguments=arguments) as server:
        make_queue(server)
        if request.param == "json":
            use_sdk(server)
        tokens = asyncio.run(be_busy(server))
        written = read_everything(server)
    return request.param, written + server.log, tokens


def read_everything(server: ServerProcess) -> str:
    files = sorted((server.data_dir / "diagnostics").rglob("*.*"))
    return "".join([path.read_text() for path in files])


def token(path: str, rule: RuleConfig, key: str) -> str:
    expires_s = SystemClock().now().utc_ms // 1_000 + 600
    return make_sas_token(f"sb://first/{path}", rule.name, key, expires_s)


def make_queue(server: ServerProcess) -> None:
    rule = AuthorizationRule(
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        key_name="Mine",
        primary_key=ENTITY_KEYS[0],
        secondary_key=ENTITY_KEYS[1],
    )
    with connect(server) as admin:
        admin.create_queue("orders", authorization_rules=[rule])


def use_sdk(server: ServerProcess) -> None:
    parsed = ConnectionString.parse(server.connection_string)
    endpoint = f"Endpoint=sb://127.0.0.1:{parsed.port};UseDevelopmentEmulator=true;"
    first = f"{endpoint}SharedAccessKeyName=Root;SharedAccessKey={ROOT.primary_key}"
    mine = f"{endpoint}SharedAccessKeyName=Mine;SharedAccessKey={ENTITY_KEYS[0]}"
    wrong = f"{endpoint}SharedAccessKeyName=Root;SharedAccessKey={WRONG_KEY}"
    for text in (first, mine):
        with ServiceBusClient.from_connection_string(text) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage(b"x"))
            with client.get_queue_receiver("orders") as receiver:
                [message] = receiver.receive_messages(1, max_wait_time=10)
                receiver.complete_message(message)
    client = ServiceBusClient.from_connection_string(wrong, retry_total=0)
    with client, pytest.raises(ServiceBusError), client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(b"x"))


async def be_busy(server: ServerProcess) -> list[str]:
    tokens = [
        token("", ROOT, ROOT.primary_key),
        token("", OTHER, OTHER.primary_key),
        token("orders", ROOT, WRONG_KEY),
        WEB_TOKEN,
    ]
    for password in (WRONG_KEY, ROOT.primary_key):
        plain = f"\0Root\0{password}".encode()
        try:
            async with await RawConnection.tcp(
                server.port, mechanism="PLAIN", response=plain
            ) as raw:
                for key in KEYS:  # an address that is a key: what cannot be found is quoted
                    await raw.attach("receiver", key)
        except Refused:
            assert password == WRONG_KEY
    async with await RawConnection.tcp(server.port) as raw:
        for text in tokens:
            await raw.put_token(text, f"sb://x/{ROOT.primary_key}")
        await raw.attach("sender", ROOT.secondary_key)
    for text in tokens:
        for path in ("orders", quote(ROOT.primary_key, safe=""), text[:50].replace(" ", "")):
            await asyncio.to_thread(ask, server.port, path, text)
    return tokens


def ask(port: int, path: str, authorization: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}?api-version=2021-05",
        headers={"Authorization": authorization},
    )
    try:
        urllib.request.urlopen(request).close()
    except urllib.error.HTTPError as error:
        error.close()


def test_nothing_secret_was_written(session: tuple[str, str, list[str]]) -> None:
    _, written, tokens = session
    assert "link refused" in written and "***" in written  # keys were quoted, and hidden
    for key in KEYS:
        for spelling in (key, quote(key, safe=""), json.dumps(key)[1:-1], key[:16]):
            assert spelling not in written
    for text in tokens:
        assert text not in written
        signature = re.search(r"sig=([^&]+)", text)
        assert (signature[1] if signature else text.rpartition(".")[2]) not in written


def test_every_line_is_one_record(session: tuple[str, str, list[str]]) -> None:
    log_format, written, _ = session
    lines = written.splitlines()
    assert len(lines) > 15
    if log_format == "text":
        form = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ [\w.]+: .+")
        assert all(form.fullmatch(line) for line in lines)
        return
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for record in records:
        assert list(record)[:4] == ["time", "level", "logger", "message"]
    about_clients = [each for each in records if "connection" in each]
    assert "first" in {each.get("namespace") for each in about_clients}
    assert "orders" in {each.get("entity") for each in about_clients}
    assert "twinbus.remote" in {each["logger"] for each in records}  # a broker process wrote, too


def test_broker_processes_hide_what_they_are_told(tmp_path: Path) -> None:
    """Nothing that clients say is logged in there; so this says it in their place."""
    import logging

    from twinbus.host.brokers.worker import RecentLog

    recent = RecentLog()
    recent.secrets.add([ROOT.primary_key])
    log = logging.getLogger(str(tmp_path))
    log.addHandler(recent)
    log.error("invariant failed: %s", ROOT.primary_key)
    assert recent.lines[0].endswith("invariant failed: ***")
