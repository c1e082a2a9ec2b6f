"""Server configuration and the identity of a data directory."""

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from twinbus.cli.main import main
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
    known_stores,
    load_identities,
    load_stores,
    new_identity,
    record_stores,
    store_identity,
    write_private,
)
from twinbus.errors import ConfigError
from twinbus.limits import BROKERS_MAX, SHARED_ACCESS_RULES_MAX, STORES_MAX

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
        {"link_idle_s": 0.0},
        {"link_idle_s": float("inf")},
        {"link_idle_s": float("nan")},
        {"brokers": 0},
        {"brokers": BROKERS_MAX + 1},
        {"stores": tuple(Path(f"s{n}") for n in range(STORES_MAX + 1))},
        {"stores": (Path("a"), Path("b"), Path("b/../a"))},
        {"stores": (Path("a"), Path("a/b"))},
        {"stores": (Path("a/b"), Path("a"))},
        {"stores": (Path("data"),)},
        {"broker_timeout_s": 0.0},
        {"broker_well_s": -1.0},
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        config(**changes)


@pytest.mark.parametrize("name", ["", "two words", "-x", "x" * 51, "a.b", "a:b"])
def test_names_that_no_host_could_have(name: str) -> None:
    with pytest.raises(ConfigError, match="is not valid"):
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
        (["a b"], [], "is not valid"),
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
    rules = (RuleConfig("root", "a", "b", ("Manage",)),)
    assert identity == Identity("old", rules, NOW_MS, identity.id)


@pytest.mark.proves("P-19")
def test_every_namespace_has_an_id_for_ever(tmp_path: Path) -> None:
    """One from a file of the last version gets it at its first start."""
    store_identity(tmp_path, *load(tmp_path, ["a", "b"]))
    path = tmp_path / "server.json"
    document = json.loads(path.read_text())
    del document["namespaces"][0]["id"]
    path.write_text(json.dumps(document))
    first = load(tmp_path)
    store_identity(tmp_path, *first)
    assert load(tmp_path) == first
    assert first[1].id == document["namespaces"][1]["id"]
    assert len({each.id for each in first} | {""}) == 3
    assert new_identity("c", NOW_MS).id not in {each.id for each in first}


@pytest.mark.proves("P-19")
def test_a_namespace_that_takes_a_new_name_is_the_same(tmp_path: Path) -> None:
    [before] = load(tmp_path, ["x"])
    store_identity(tmp_path, before)
    assert [each.id for each in load(tmp_path, ["y"])] == [before.id]


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


# --- stores -----------------------------------------------------------------------------------


def begin(data_dir: Path, given: Sequence[Path] = (), brokers: int = 1) -> tuple[Path, ...]:
    """What a server does with its stores when it starts: find, make and record them."""
    stores = load_stores(data_dir, given, brokers)
    for store in stores:
        store.mkdir(exist_ok=True)
    record_stores(data_dir, stores)
    return stores


def test_one_broker_has_one_store_in_the_data_directory(tmp_path: Path) -> None:
    assert begin(tmp_path) == (tmp_path / "store-0",)
    assert not (tmp_path / "stores.json").exists()
    assert config(data_dir=tmp_path).is_in_process
    assert begin(tmp_path) == (tmp_path / "store-0",)


def test_every_broker_gets_a_store(tmp_path: Path) -> None:
    stores = (tmp_path / "store-0", tmp_path / "store-1", tmp_path / "store-2")
    assert config(data_dir=tmp_path, brokers=3).store_paths == stores
    assert not config(data_dir=tmp_path, brokers=3).is_in_process
    assert begin(tmp_path, brokers=3) == stores
    # Fewer brokers share them; a store does not go away by itself.
    assert begin(tmp_path, brokers=1) == stores
    assert begin(tmp_path, brokers=4) == (*stores, tmp_path / "store-3")


def test_a_directory_from_before_keeps_its_store_as_the_first(tmp_path: Path) -> None:
    (tmp_path / "store-0").mkdir()
    assert known_stores(tmp_path) == (tmp_path / "store-0",)
    with pytest.raises(ConfigError, match=r"begin with --store \S+store-0 and add"):
        load_stores(tmp_path, [tmp_path / "elsewhere"], 1)
    stores = begin(tmp_path, [tmp_path / "store-0", tmp_path / "elsewhere"])
    assert stores == (tmp_path / "store-0", tmp_path / "elsewhere")


def test_the_order_of_stores_is_remembered(tmp_path: Path) -> None:
    data_dir, disks = tmp_path / "data", tmp_path / "disks"
    data_dir.mkdir()
    disks.mkdir()
    first, second, third = disks / "a", disks / "b", data_dir / "c"
    begin(data_dir, [first, second])
    assert begin(data_dir) == (first, second)
    assert begin(data_dir, [first, second, third]) == (first, second, third)
    # What is inside the directory moves with it.
    document = json.loads((data_dir / "stores.json").read_text())
    assert document == {"stores": [str(first), str(second), "c"]}
    for wrong in ([second, first, third], [first, second], [first], [first, third, second]):
        with pytest.raises(ConfigError, match=r"begin with --store .*a --store .*b --store .*c"):
            load_stores(data_dir, wrong, 1)
    assert json.loads((data_dir / "stores.json").read_text()) == document


def test_the_same_store_by_another_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    begin(tmp_path, [tmp_path / "disk" / "a"])
    monkeypatch.chdir(tmp_path)
    assert load_stores(tmp_path, [Path("link/a")], 1) == (tmp_path / "disk" / "a",)


def test_a_store_that_is_missing_is_not_made_anew(tmp_path: Path) -> None:
    """An empty store in the place of a disk that is not mounted would look like lost messages."""
    begin(tmp_path, brokers=2)
    (tmp_path / "store-1").rmdir()
    with pytest.raises(ConfigError, match=r"store-1 belongs to .* and is missing; mount it"):
        load_stores(tmp_path, (), 2)


def test_a_store_is_made_in_a_directory_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "no" / "store", tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(ConfigError, match="cannot be created"):
            load_stores(tmp_path, [wrong], 1)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"stores": "a"}', '{"stores": [1]}'])
def test_a_list_of_stores_that_cannot_be_read_is_no_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "stores.json").write_text(text)
    with pytest.raises(ConfigError, match=r"stores\.json: cannot be used"):
        load_stores(tmp_path, (), 1)


@pytest.mark.parametrize("megabytes", ["0", "7", "1025"])
def test_the_size_of_segments_has_limits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, megabytes: str
) -> None:
    data_dir = tmp_path / "data"
    assert main(["serve", "--data", str(data_dir), "--segment-size", megabytes]) == 1
    reason = f"--segment-size {megabytes} is not between 8 and 1024"
    assert reason in capsys.readouterr().err
    assert not list(data_dir.rglob("*.log"))
