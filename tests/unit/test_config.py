"""Server configuration and the identity of a data directory."""

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from twinbus.client.connection_string import ConnectionString
from twinbus.config import (
    NAMESPACES_MAX,
    RIGHTS,
    Identity,
    JwtConfig,
    NamespaceConfig,
    RuleConfig,
    ServerConfig,
    TlsConfig,
    load_identities,
    store_identity,
    write_private,
)
from twinbus.errors import ConfigError
from twinbus.limits import SHARED_ACCESS_RULES_MAX

NOW_MS = 1_800_000_000_000
RULE = RuleConfig("RootManageSharedAccessKey", "first key", "second key")


def namespace(name: str = "bus", *rules: RuleConfig) -> NamespaceConfig:
    return NamespaceConfig(Identity(name, rules or (RULE,)))


def config(**changes: object) -> ServerConfig:
    values: dict[str, object] = {"data_dir": Path("data"), "namespaces": (namespace(),)}
    return ServerConfig(**{**values, **changes})  # type: ignore[arg-type]


# --- ServerConfig -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"port": -1},
        {"port": 65_536},
        {"extra_ports": (5300, 70_000)},
        {"namespaces": ()},
        {"namespaces": (namespace("bus"), namespace("BUS"))},
        {"namespaces": tuple(namespace(f"n{n}") for n in range(NAMESPACES_MAX + 1))},
        {"handshake_s": 0.0},
        {"cbs_s": -1.0},
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        config(**changes)


@pytest.mark.parametrize("name", ["", "two words", "-x", "x" * 51, "a.b", "a:b"])
def test_names_that_no_host_could_have(name: str) -> None:
    with pytest.raises(ConfigError, match="not usable"):
        Identity(name, (RULE,))


@pytest.mark.parametrize(
    "rules",
    [
        (),
        (RULE, RULE),
        tuple(RuleConfig(str(n), "k", "k") for n in range(SHARED_ACCESS_RULES_MAX + 1)),
    ],
)
def test_rules_that_no_namespace_could_have(rules: tuple[RuleConfig, ...]) -> None:
    with pytest.raises(ConfigError):
        Identity("bus", rules)


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
    "settings",
    [
        {"certificate": Path("c")},
        {"key": Path("k")},
        {"client_rights": (("app", ("Send",)),)},
        {"client_ca": Path("ca"), "client_rights": (("app", ()),)},
        {"client_ca": Path("ca"), "client_rights": (("app", ("Fly",)),)},
        {"client_ca": Path("ca"), "client_rights": (("", ("Send",)),)},
    ],
)
def test_tls_that_is_only_half_said(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TlsConfig(**settings)


@pytest.mark.parametrize("issuer, audiences", [("", ("a",)), ("i", ()), ("i", ("",))])
def test_issuer_that_is_only_half_said(issuer: str, audiences: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        JwtConfig(issuer, audiences, "keys")


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
    [text] = config(host=host).connection_strings(7000).values()
    assert text == (
        f"Endpoint=sb://{printed};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=first key;UseDevelopmentEmulator=true;"
    )
    assert ConnectionString.parse(text).authority == printed


def test_each_namespace_has_its_connection_string() -> None:
    other = RuleConfig("other", "its key", "its second")
    strings = config(namespaces=(namespace(), namespace("b", other))).connection_strings(1)
    assert list(strings) == ["bus", "b"]
    assert ConnectionString.parse(strings["b"]).key == "its key"


def test_no_connection_string_leads_around_required_tls() -> None:
    [text] = config(tls=TlsConfig(is_required=True)).connection_strings(1).values()
    assert not ConnectionString.parse(text).development_emulator


def test_keys_do_not_show_in_representations() -> None:
    assert "first key" not in repr(config())
    assert "second key" not in repr(config())
    [text] = config().connection_strings(1).values()
    assert "first key" not in repr(ConnectionString.parse(text))


# --- identity ---------------------------------------------------------------------------------


def load(data_dir: Path, names: Sequence[str] = (), keys: Sequence[str] = ()) -> list[Identity]:
    return list(load_identities(data_dir, NOW_MS, names, keys))


def test_identity_stays_over_restarts(tmp_path: Path) -> None:
    [first] = load(tmp_path)
    store_identity(tmp_path, first)
    assert list(load_identities(tmp_path, NOW_MS + 1)) == [first]
    assert first.created_utc_ms == NOW_MS
    assert len(first.rules[0].primary_key) >= 32
    [other] = load(tmp_path / "other")
    assert first.rules[0].primary_key != other.rules[0].primary_key


def test_identity_is_for_its_owner_only(tmp_path: Path) -> None:
    store_identity(tmp_path, *load(tmp_path))
    assert stat.S_IMODE((tmp_path / "server.json").stat().st_mode) == 0o600


def test_loading_writes_nothing(tmp_path: Path) -> None:
    """A second server must not change the first one's key before it is turned away."""
    load(tmp_path, keys=["another"])
    assert list(tmp_path.iterdir()) == []


def test_key_and_namespace_given_replace_the_stored_ones(tmp_path: Path) -> None:
    store_identity(tmp_path, *load(tmp_path))
    [changed] = load(tmp_path, ["orders"], ["chosen"])
    assert changed.namespace == "orders"
    assert changed.rules[0].primary_key == "chosen"
    store_identity(tmp_path, changed)
    assert load(tmp_path) == [changed]


def test_namespaces_keep_their_place_and_their_keys(tmp_path: Path) -> None:
    """The store knows the first one's entities by its place, so nothing may come before it."""
    first = load(tmp_path, ["a", "b"], ["key of a", "key of b"])
    assert [one.rules[0].primary_key for one in first] == ["key of a", "key of b"]
    store_identity(tmp_path, *first)
    assert load(tmp_path) == first
    assert load(tmp_path, ["B", "a"]) == first
    assert load(tmp_path, ["b"]) == first
    more = load(tmp_path, ["c", "b"], ["key of c"])
    assert more[:2] == first
    assert [more[2].namespace, more[2].rules[0].primary_key] == ["c", "key of c"]
    assert more[2].created_utc_ms == NOW_MS


def test_only_a_namespace_that_is_alone_takes_a_new_name(tmp_path: Path) -> None:
    [alone] = load(tmp_path)
    store_identity(tmp_path, alone)
    both = load(tmp_path, ["a", "b"])
    assert [one.namespace for one in both] == ["a", "b"]
    assert both[0].rules == alone.rules
    store_identity(tmp_path, *both)
    assert [one.namespace for one in load(tmp_path, ["c"])] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "names, keys, reason",
    [
        (["a", "A"], [], "same name"),
        (["a b"], [], "not usable"),
        (["a"], ["1", "2"], "2 keys for 1 namespaces"),
    ],
)
def test_names_and_keys_that_do_not_fit(
    tmp_path: Path, names: list[str], keys: list[str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path, names, keys)


def test_further_rules_may_be_written_by_hand(tmp_path: Path) -> None:
    store_identity(tmp_path, *load(tmp_path))
    path = tmp_path / "server.json"
    document = json.loads(path.read_text())
    rule = {"name": "listener", "rights": ["Listen"], "primary_key": "a", "secondary_key": "b"}
    document["namespaces"][0]["rules"].append(rule)
    path.write_text(json.dumps(document))
    [identity] = load(tmp_path)
    assert identity.rules[1] == RuleConfig("listener", "a", "b", ("Listen",))


def test_file_of_the_first_version_is_read(tmp_path: Path) -> None:
    rule = {"name": "root", "rights": ["Manage"], "primary_key": "a", "secondary_key": "b"}
    (tmp_path / "server.json").write_text(json.dumps({"namespace": "old", "rules": [rule]}))
    [identity] = load(tmp_path)
    assert identity == Identity("old", (RuleConfig("root", "a", "b", ("Manage",)),), NOW_MS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"namespace": "x"}',
        '{"namespace": "x", "rules": [{"name": "n"}]}',
        '{"namespaces": []}',
        '{"namespaces": [{"name": null, "rules": []}]}',
        '{"namespaces": [{"name": "x", "rules": [], "created_utc_ms": "never"}]}',
        "7",
    ],
)
def test_damaged_identity_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    with pytest.raises(ConfigError, match=r"server\.json"):
        load(tmp_path)


def test_private_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("open to all")
    path.chmod(0o644)
    (tmp_path / "file.new").write_text("left behind by a crash")
    write_private(path, "secret")
    assert path.read_text() == "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
