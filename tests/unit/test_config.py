"""Server configuration, the identity of a data directory, and the emulator's Config.json."""

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.client.connection_string import ConnectionString
from twinbus.config import (
    RIGHTS,
    RULES_MAX,
    RuleConfig,
    ServerConfig,
    load_identity,
    store_identity,
    write_private,
)
from twinbus.emulator_config import EmulatorConfig, parse_emulator_config, read_emulator_config
from twinbus.entities.descriptions import QueueDescription
from twinbus.errors import ConfigError
from twinbus.json_lines import NESTING_MAX, parse

RULE = RuleConfig("RootManageSharedAccessKey", "first key", "second key")


def config(**changes: object) -> ServerConfig:
    values: dict[str, object] = {"data_dir": Path("data"), "namespace": "bus", "rules": (RULE,)}
    return ServerConfig(**{**values, **changes})  # type: ignore[arg-type]


# --- ServerConfig -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"port": -1},
        {"port": 65_536},
        {"extra_ports": (5300, 70_000)},
        {"namespace": ""},
        {"namespace": "two words"},
        {"namespace": "-x"},
        {"namespace": "x" * 51},
        {"rules": ()},
        {"rules": (RULE, RULE)},
        {"rules": tuple(RuleConfig(str(n), "k", "k") for n in range(RULES_MAX + 1))},
        {"handshake_s": 0.0},
        {"cbs_s": -1.0},
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        config(**changes)


@pytest.mark.parametrize(
    "name, key, rights",
    [
        ("", "k", RIGHTS),
        ("n", "", RIGHTS),
        ("n", "k" * 257, RIGHTS),
        ("n", "with;semicolon", RIGHTS),
        ("n", "line\nbreak", RIGHTS),
        ("n", "k", ()),
        ("n", "k", ("Own",)),
    ],
)
def test_rules_that_no_connection_string_could_carry(
    name: str, key: str, rights: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError):
        RuleConfig(name, key, "second", rights)


@pytest.mark.parametrize(
    "host, printed",
    [
        ("127.0.0.1", "127.0.0.1:7000"),
        ("bus.example", "bus.example:7000"),
        ("0.0.0.0", "127.0.0.1:7000"),
        ("::", "[::1]:7000"),
        ("::1", "[::1]:7000"),
    ],
)
def test_connection_string_can_be_used(host: str, printed: str) -> None:
    text = config(host=host).connection_string(7000)
    assert text == (
        f"Endpoint=sb://{printed};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=first key;UseDevelopmentEmulator=true;"
    )
    assert ConnectionString.parse(text).authority == printed


def test_keys_do_not_show_in_representations() -> None:
    assert "first key" not in repr(config())
    assert "second key" not in repr(config())
    assert "first key" not in repr(ConnectionString.parse(config().connection_string(1)))


# --- identity ---------------------------------------------------------------------------------


def test_identity_stays_over_restarts(tmp_path: Path) -> None:
    first = load_identity(tmp_path)
    store_identity(tmp_path, first)
    assert load_identity(tmp_path) == first
    assert len(first.rules[0].primary_key) >= 32
    assert first.rules[0].primary_key != load_identity(tmp_path / "other").rules[0].primary_key


def test_identity_is_for_its_owner_only(tmp_path: Path) -> None:
    store_identity(tmp_path, load_identity(tmp_path))
    assert stat.S_IMODE((tmp_path / "server.json").stat().st_mode) == 0o600


def test_loading_writes_nothing(tmp_path: Path) -> None:
    """A second server must not change the first one's key before it is turned away."""
    load_identity(tmp_path, key="another")
    assert list(tmp_path.iterdir()) == []


def test_key_and_namespace_given_replace_the_stored_ones(tmp_path: Path) -> None:
    store_identity(tmp_path, load_identity(tmp_path))
    changed = load_identity(tmp_path, "orders", "chosen")
    assert changed.namespace == "orders"
    assert changed.rules[0].primary_key == "chosen"
    store_identity(tmp_path, changed)
    assert load_identity(tmp_path) == changed


def test_further_rules_may_be_written_by_hand(tmp_path: Path) -> None:
    store_identity(tmp_path, load_identity(tmp_path))
    path = tmp_path / "server.json"
    document = json.loads(path.read_text())
    rule = {"name": "listener", "rights": ["Listen"], "primary_key": "a", "secondary_key": "b"}
    document["rules"].append(rule)
    path.write_text(json.dumps(document))
    assert load_identity(tmp_path).rules[1] == RuleConfig("listener", "a", "b", ("Listen",))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"namespace": "x"}', '{"namespace": "x", "rules": [{"name": "n"}]}', "7"],
)
def test_damaged_identity_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    with pytest.raises(ConfigError, match=r"server\.json"):
        load_identity(tmp_path)


def test_private_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("open to all")
    path.chmod(0o644)
    (tmp_path / "file.new").write_text("left behind by a crash")
    write_private(path, "secret")
    assert path.read_text() == "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# --- Config.json ------------------------------------------------------------------------------

WHOLE = """\
{
  // the emulator's own file has comments
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns", /* and its name */
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": true,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT30S",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false
            }
          },
          { "Name": "plain" },
        ],
        "Topics": []
      }
    ],
    "Logging": { "Type": "File" }
  }
}
"""


def test_emulator_config() -> None:
    assert parse_emulator_config(WHOLE, "Config.json") == EmulatorConfig(
        "sbemulatorns",
        (
            (
                "queue.1",
                QueueDescription(
                    dead_lettering_on_message_expiration=True,
                    default_time_to_live_ms=3_600_000,
                    duplicate_detection_window_ms=20_000,
                    lock_duration_ms=30_000,
                    max_delivery_count=3,
                ),
            ),
            ("plain", QueueDescription()),
        ),
    )


def with_line(line: int, text: str) -> str:
    lines = WHOLE.splitlines()
    lines[line - 1] = text
    return "\n".join(lines)


@pytest.mark.parametrize(
    "line, text, reason",
    [
        (3, '"UserConfg": {', "unknown key UserConfg in the file; the nearest is UserConfig"),
        (6, '"Nam": "x",', "unknown key Nam in a namespace; the nearest is Name"),
        (6, '"Name": 7,', "Name is not text"),
        (9, '"Name": "a//b",', "empty path segment"),
        (9, '"Name": "plain?",', "is not allowed"),
        (11, '"DeadLetteringOnMessageExpiration": "yes",', "DeadLetteringOnMessageExpiration"),
        (11, '"DeadLetteringOnExpiration": true,', "nearest is DeadLetteringOnMessageExpiration"),
        (12, '"DefaultMessageTimeToLive": "1h",', "DefaultMessageTimeToLive: '1h' is no ISO 8601"),
        (12, '"DefaultMessageTimeToLive": 3600,', "DefaultMessageTimeToLive is not text"),
        (15, '"ForwardTo": "other",', "ForwardTo: comes with a later version"),
        (16, '"LockDuration": "PT1S",', "LockDuration: lock_duration_ms is 1000; allowed is 5000"),
        (17, '"MaxDeliveryCount": 0,', "MaxDeliveryCount"),
        (17, '"MaxDeliveryCount": 2.5,', "MaxDeliveryCount"),
        (17, '"MaxDeliveryCount": true,', "MaxDeliveryCount"),
        (17, '"MaxDeliveryCount": [],', "MaxDeliveryCount has a nested value"),
        (17, '"ForwardTo": "",', "expected ForwardTo only once"),
        (18, '"RequiresDuplicateDetection": true,', "comes with a later version"),
        (19, '"RequiresSession": true', "RequiresSession: comes with a later version"),
        (19, '"RequiresSession": maybe', "found m, expected JSON"),
        (22, '{ "Name": "QUEUE.1" },', "queue QUEUE.1 is declared twice"),
        (22, '{ "Properties": {} },', "Name is missing"),
        (22, "7,", "a queue is not an object"),
        (24, '"Topics": [ { "Name": "t" } ]', "Topics: comes with a later version"),
        (24, '"Topics": {}', "Topics is not a list"),
        (27, '"Loging": {}', "unknown key Loging in UserConfig; the nearest is Logging"),
    ],
)
def test_faults_are_named_with_their_line(line: int, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_emulator_config(with_line(line, text), "Config.json")
    assert str(caught.value).startswith(f"Config.json, line {line}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "line 1: found the end of the file, expected a value"),
        ("{", "line 1: found the end of the file"),
        ("{}", "line 1: UserConfig is missing"),
        ('{"UserConfig": {}}', "Namespaces is missing"),
        ('{"UserConfig": {"Namespaces": []}}', "0 namespaces"),
        ('{"UserConfig": {"Namespaces": [{}, {}]}}', "2 namespaces"),
        ("{}\n{}", "line 2: found {, expected nothing more"),
        ("[" * (NESTING_MAX + 2), "levels of nesting"),
        ('{"a" "b"}', 'found "b", expected `:`'),
        ("{1: 2}", 'expected a key in "quotes"'),
        ("01x", "expected"),
        ('"\\q"', "expected JSON"),
    ],
)
def test_files_that_are_not_one(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_emulator_config(text, "Config.json")
    assert reason in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_emulator_config(tmp_path / "missing.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match="not UTF-8 text at byte 7"):
        read_emulator_config(binary)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def plain(value: object) -> object:
    """A parsed value without its lines."""
    if isinstance(value, list):
        return [plain(node.value) for node in value]
    if isinstance(value, dict):
        return {key: plain(node.value) for key, node in value.items()}
    return value


@given(json_values, st.sampled_from([None, 2]))
def test_any_json_is_read_as_json_reads_it(value: object, indent: int | None) -> None:
    assert plain(parse(json.dumps(value, indent=indent), "f").value) == value


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text, "f")
    except ConfigError as error:
        assert str(error).startswith("f, line ")
