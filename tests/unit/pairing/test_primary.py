"""Whose backlog is whose: names, marks, and what may be moved."""

import pytest

from twinbus.pairing.primary import Owner, Primary, primary_of, strangers_told

pytestmark = pytest.mark.proves("P-19")


@pytest.mark.proves("P-4", "P-19")
@pytest.mark.parametrize(
    ("namespace", "name", "mark", "old_name"),
    [
        ("contoso.servicebus.windows.net", "contoso", "contoso", None),
        ("sb://Contoso.servicebus.windows.net/", "contoso", "contoso", None),
        ("contoso.servicebus.windows.net:5671", "contoso", "contoso", None),
        *[
            (f"contoso.servicebus.{cloud}", "contoso", f"contoso.servicebus.{cloud}", None)
            for cloud in ("chinacloudapi.cn", "usgovcloudapi.net", "cloudapi.de")
        ],
        ("localhost:5672", "localhost-5672", "localhost-5672", None),
        ("localhost", "localhost", "localhost", None),
        ("sb://127.0.0.1:7000/", "127.0.0.1-7000", "127.0.0.1-7000", None),
        ("[::1]:5672", "--1-5672", "--1-5672", None),
        ("box", "box-5671", "box-5671", "box"),
        ("box:5671", "box-5671", "box-5671", "box"),
        ("BOX.:5673", "box-5673", "box-5673", "box"),
        ("bus.dc1.example.com", "bus.dc1.example.com-5671", "bus.dc1.example.com-5671", "bus"),
        ("sb.windows.net", "sb.windows.net-5671", "sb.windows.net-5671", "sb"),
    ],
)
def test_names(namespace: str, name: str, mark: str, old_name: str | None) -> None:
    """Azure's are those of Microsoft's clients; elsewhere host and port tell primaries apart."""
    assert primary_of(namespace) == Primary(name, mark, old_name)


@pytest.mark.parametrize("namespace", ["", "sb:///x", "sb://host:port", "//"])
def test_no_namespace(namespace: str) -> None:
    with pytest.raises(ValueError, match="not a namespace"):
        primary_of(namespace)


def test_a_given_name_is_name_and_mark() -> None:
    """So several host names can be one primary."""
    one = primary_of("bus.dc1.example.com", "shop")
    expected = Primary("shop", "shop", None, compares_ids=False)
    assert one == primary_of("10.0.0.7:5672", "shop") == expected


def test_the_id_of_a_namespace_only_ever_refuses() -> None:
    """Where one side does not know it, the mark decides; a given name needs no second word."""
    owner = primary_of("bus.example.com").owner_of("bus/x-servicebus-transfer/0")
    mark = "bus.example.com-5671"
    for namespace, here in ((None, None), ("x", None), (None, "x"), ("x", "x")):
        assert owner.owns(mark, namespace, here)
        assert not owner.owns("other", namespace, here)
        assert not owner.owns(None, namespace, here)
    assert not owner.owns(mark, "x", "y")
    assert owner.whose(mark, "x") == "bus.example.com-5671#x"
    assert (owner.whose("other", "x"), owner.whose(None, "x")) == ("other", "")
    own = primary_of("bus.example.com").owner_of(f"{mark}/x-servicebus-transfer/0")
    assert own.owns(None, "x", "x")
    assert not own.owns(None, "x", "y")
    vouched = primary_of("bus.example.com", mark).owner_of("bus/x-servicebus-transfer/0")
    assert vouched.owns(mark, "x", "y")
    assert not vouched.owns("other", "x", "x")


def test_what_people_are_told_of_another_namespace() -> None:
    told = strangers_told("q", "bus.example.com-5671#x", 1_000)
    assert told.startswith(
        "q: 1,000 messages of bus.example.com-5671#x are left: another namespace"
    )
    assert told.endswith("run `twinbus pair drain --primary-name bus.example.com-5671`")


def test_primaries_that_used_to_share_their_queues() -> None:
    namespaces = [
        *("bus.dc1.example.com", "bus.dc2.example.com", "bus", "bus:5672", "bus:5673"),
        *("bus.servicebus.windows.net", "bus.servicebus.chinacloudapi.cn"),
    ]
    primaries = [primary_of(each) for each in namespaces]
    assert len({each.mark for each in primaries}) == len(primaries)
    assert len({each.name for each in primaries[:-1]}) == len(primaries) - 1
    for one in primaries:
        for other in primaries:
            queue = f"{one.name}/x-servicebus-transfer/0"
            assert other.owner_of(queue).owns(one.mark) is (one is other)


@pytest.mark.parametrize(
    ("queue", "adopts", "takes"),
    [
        ("bus.example.com-5671/x-servicebus-transfer/0", False, True),
        ("BUS.example.com-5671/X-ServiceBus-Transfer/3", False, True),
        ("bus/x-servicebus-transfer/0", False, False),
        ("bus/x-servicebus-transfer/0", True, True),
        ("bus.example.com-56712/x-servicebus-transfer/0", False, False),
    ],
)
def test_messages_without_a_mark(queue: str, adopts: bool, takes: bool) -> None:
    """Out of queues whose name is this primary's alone, or when somebody says so."""
    owner = primary_of("bus.example.com", adopts_unmarked=adopts).owner_of(queue)
    assert owner.owns(None) is takes
    assert owner.owns("bus.example.com-5671")
    assert not owner.owns("bus.example.com-5672")
    assert not owner.owns("")


def test_marks_compare_without_case() -> None:
    """As the names of queues do."""
    assert Owner("Shop", takes_unmarked=False).owns("sHOP")


def test_queues_of_older_versions() -> None:
    names = [
        *("bus/x-servicebus-transfer/10", "BUS/x-servicebus-transfer/2", "bus/other/1"),
        *("bus/x-servicebus-transfer/x", "a-bus/x-servicebus-transfer/1"),
        *("bus/x-servicebus-transfer/1/2", "bus.example.com-5671/x-servicebus-transfer/0"),
    ]
    found = primary_of("bus.example.com").old_queues(names)
    assert found == ["BUS/x-servicebus-transfer/2", "bus/x-servicebus-transfer/10"]
    assert primary_of("bus.servicebus.windows.net").old_queues(names) == []
    assert primary_of("bus.example.com", "bus").old_queues(names) == []
