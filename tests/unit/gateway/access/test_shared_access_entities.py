"""Authorization rules of single entities: what they open, and how they end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.client.sas import make_sas_token
from twinbus.entities.descriptions import SharedAccessRule
from twinbus.errors import Unauthorized
from twinbus.gateway.access.shared_access import (
    LISTEN,
    MANAGE,
    RIGHTS,
    SEND,
    AuthorizationRule,
    Authorizer,
    Grant,
    entity_of,
)

pytestmark = pytest.mark.proves("M-12")

NOW_S = 1_800_000_000
LATER_S = NOW_S + 3600
HOST = "sb://localhost"

ROOT = AuthorizationRule("Root", [MANAGE], "root one", "root two")
SENDER = SharedAccessRule("sender", ("Send",), "send one", "send two")
OWNER = SharedAccessRule("owner", ("Manage", "Send", "Listen"), "own one", "own two")
NAMESAKE = SharedAccessRule("Root", ("Listen",), "namesake one", "namesake two")


class Entities:
    """Two queues and a topic with rules, which a test may change."""

    def __init__(self) -> None:
        self.rules: dict[str, tuple[SharedAccessRule, ...]] = {
            "orders": (SENDER, NAMESAKE),
            "orders/archive": (),
            "news": (OWNER,),
        }
        self.authorizer = Authorizer([ROOT], lambda name: self.rules.get(name, ()))

    def grant(
        self, rule: str, key: str, audience: str, resource: str | None = None, now_s: int = NOW_S
    ) -> Grant:
        token = make_sas_token(f"{HOST}/{resource or audience}", rule, key, LATER_S)
        return self.authorizer.check_token(token, f"{HOST}/{audience}", now_s)


@pytest.fixture
def entities() -> Entities:
    return Entities()


@pytest.mark.parametrize(
    "path, entity",
    [
        ("orders", "orders"),
        ("Orders/$DeadLetterQueue", "orders"),
        ("orders/$Transfer/$DeadLetterQueue/$management", "orders"),
        ("a/b/c", "a/b/c"),
        ("News/Subscriptions/all/$DeadLetterQueue", "news"),
        ("news/subscriptions/all/rules/r", "news"),
        ("subscriptions", "subscriptions"),
        ("subscriptions/subscriptions/x", "subscriptions"),
        ("$cbs", ""),
        ("$Resources/queues", ""),
        ("", ""),
        ("/", ""),
    ],
)
def test_entity_of_a_path(path: str, entity: str) -> None:
    assert entity_of(path) == entity


class TestWhatARuleOpens:
    @pytest.mark.proves("M-12")
    @pytest.mark.feature("access.entity-rules")
    @pytest.mark.parametrize("key", ["send one", "send two"])
    @pytest.mark.parametrize(
        "audience", ["orders", "Orders", "orders/$DeadLetterQueue", "orders/$management"]
    )
    def test_its_entity_and_what_belongs_to_it(
        self, entities: Entities, key: str, audience: str
    ) -> None:
        grant = entities.grant("sender", key, audience)
        assert grant.allows(SEND, audience, NOW_S)
        assert not grant.allows(LISTEN, audience, NOW_S)
        assert not grant.allows(MANAGE, audience, NOW_S)

    @pytest.mark.proves("M-12")
    @pytest.mark.feature("access.entity-rules")
    def test_subscriptions_are_opened_by_the_rules_of_their_topic(self, entities: Entities) -> None:
        grant = entities.grant("owner", "own one", "news/Subscriptions/all")
        assert grant.rights == RIGHTS
        assert grant.allows(LISTEN, "news/subscriptions/all/$DeadLetterQueue", NOW_S)
        assert not grant.allows(LISTEN, "news/subscriptions/other", NOW_S)
        assert entities.grant("owner", "own one", "news").allows(
            LISTEN, "news/Subscriptions/other", NOW_S
        )

    @pytest.mark.proves("M-12")
    @pytest.mark.feature("access.entity-rules")
    @pytest.mark.parametrize("audience", ["", "orders2", "orders/archive", "news", "not-there"])
    def test_nothing_else(self, entities: Entities, audience: str) -> None:
        """Not even when the token was made for the whole namespace."""
        with pytest.raises(Unauthorized, match="not valid"):
            entities.grant("sender", "send one", audience, resource="/")

    @pytest.mark.proves("M-12")
    @pytest.mark.feature("access.entity-rules")
    def test_an_entity_below_by_name_is_another(self, entities: Entities) -> None:
        grant = entities.grant("sender", "send one", "orders")
        assert grant.allows(SEND, "orders", NOW_S)
        assert not grant.allows(SEND, "orders/archive", NOW_S)
        assert not grant.allows(SEND, "orders/archive/$DeadLetterQueue", NOW_S)

    def test_a_namespace_rule_opens_everything_below(self, entities: Entities) -> None:
        grant = entities.grant("Root", "root one", "orders")
        assert grant.allows(SEND, "orders/archive", NOW_S)

    def test_rules_of_one_name_are_told_apart_by_their_keys(self, entities: Entities) -> None:
        assert entities.grant("Root", "root two", "orders").rights == RIGHTS
        assert entities.grant("Root", "namesake two", "orders").rights == {LISTEN}
        with pytest.raises(Unauthorized):
            entities.grant("Root", "namesake two", "news")

    def test_a_password_names_no_entity(self, entities: Entities) -> None:
        with pytest.raises(Unauthorized):
            entities.authorizer.check_plain("sender", "send one")

    def test_stranger_does_not_learn_which_entities_have_rules(self, entities: Entities) -> None:
        texts = set()
        for audience in ("orders", "orders/archive", "not-there", "?"):
            with pytest.raises(Unauthorized) as caught:
                entities.grant("sender", "guessed", audience, resource="orders")
            texts.add(str(caught.value))
        assert len(texts) == 1

    def test_expiry_and_scope_count_here_too(self, entities: Entities) -> None:
        with pytest.raises(Unauthorized, match="expired"):
            entities.grant("sender", "send one", "orders", now_s=LATER_S)
        with pytest.raises(Unauthorized, match="another resource"):
            entities.grant("sender", "send one", "orders", resource="orders/$DeadLetterQueue")

    @given(st.text(max_size=40), st.text(max_size=20))
    def test_any_audience_is_refused_to_strangers(self, audience: str, key: str) -> None:
        with pytest.raises(Unauthorized):
            Entities().grant("sender", key, audience)


class TestWhatEndsARule:
    def test_an_untouched_rule_stands(self, entities: Entities) -> None:
        for key in ("send one", "send two"):
            grant = entities.grant("sender", key, "orders")
            assert entities.authorizer.stands(grant)

    @pytest.mark.proves("M-12")
    @pytest.mark.feature("access.entity-rules")
    @pytest.mark.parametrize(
        "rules",
        [
            (),
            (NAMESAKE,),
            (SharedAccessRule("sender", ("Send",), "renewed", "send two"),),
            (SharedAccessRule("sender", ("Listen",), "send one", "send two"),),
            (SharedAccessRule("sender", ("Send", "Listen"), "send one", "send two"),),
        ],
        ids=["all gone", "gone", "key renewed", "other rights", "more rights"],
    )
    def test_a_changed_rule_stands_no_more(
        self, entities: Entities, rules: tuple[SharedAccessRule, ...]
    ) -> None:
        grant = entities.grant("sender", "send one", "orders")
        entities.rules["orders"] = rules
        assert not entities.authorizer.stands(grant)

    @pytest.mark.proves("M-12")
    def test_the_other_key_still_stands(self, entities: Entities) -> None:
        """Keys are rotated one at a time, and nobody who has moved on is cut off."""
        grant = entities.grant("sender", "send two", "orders")
        renewed = SharedAccessRule("sender", ("Send",), "renewed", "send two")
        entities.rules["orders"] = (renewed,)
        assert entities.authorizer.stands(grant)

    def test_an_entity_takes_its_rules_along(self, entities: Entities) -> None:
        grant = entities.grant("owner", "own one", "news/Subscriptions/all")
        del entities.rules["news"]
        assert not entities.authorizer.stands(grant)

    def test_rules_of_the_namespace_always_stand(self, entities: Entities) -> None:
        grants = [
            entities.grant("Root", "root one", "orders"),
            entities.authorizer.check_plain("Root", "root one"),
            Grant(RIGHTS, "", LATER_S),
        ]
        entities.rules.clear()
        assert all(entities.authorizer.stands(grant) for grant in grants)
