"""Attaching: what a link's address means, whether the client may, and the context it gets."""

from typing import Final

from twinbus.amqp.composites import Coordinator
from twinbus.amqp.egress import EgressLink
from twinbus.amqp.endpoints import Link
from twinbus.amqp.ingress import IngressLink
from twinbus.amqp.types import Symbol, ULong
from twinbus.entities.commands import PEEK_LOCK, RECEIVE_AND_DELETE
from twinbus.errors import ArgumentInvalid, ServiceError
from twinbus.gateway.directory.addresses import Address, parse_address
from twinbus.limits import BATCH_SIZE_BYTES_MAX, INGRESS_CREDIT, MESSAGE_SIZE_BYTES_MAX
from twinbus.message import wire_names
from twinbus.server.amqp.cbs import CBS, ClaimsNode
from twinbus.server.amqp.conversation import Conversation
from twinbus.server.amqp.coordinator import CoordinatorLink
from twinbus.server.amqp.management.node import ManagementNode
from twinbus.server.amqp.receiving import ReceivingLink
from twinbus.server.amqp.request_node import RequestLink, RequestNode, ResponseLink
from twinbus.server.amqp.sending import SendingLink
from twinbus.server.amqp.session_receiving import AcceptingLink, read_session_filter

BATCH_SIZE: Final = Symbol("com.microsoft:max-message-batch-size")
NAMESPACE_ID: Final = Symbol(wire_names.NAMESPACE_ID)
SETTLED: Final = 1  # snd-settle-mode

Context = SendingLink | ReceivingLink | AcceptingLink | RequestLink | ResponseLink | CoordinatorLink


def attach_link(conversation: Conversation, link: Link) -> Context:
    """Answer an attach, or raise the ServiceError it is refused with."""
    if isinstance(link, IngressLink):
        return _attach_ingress(conversation, link)
    assert isinstance(link, EgressLink)
    return _attach_egress(conversation, link)


def _attach_ingress(conversation: Conversation, link: IngressLink) -> Context:
    target = link.target
    if isinstance(target, Coordinator):
        coordinator = CoordinatorLink(conversation, link)
        coordinator.accept()
        return coordinator
    address = _address(target.address if target is not None else None)
    node = _node(conversation, link.session.context, address)
    context: Context
    size_max = MESSAGE_SIZE_BYTES_MAX
    properties: dict[object, object] = {}
    if node is not None:
        context = RequestLink(link, node)
    else:
        conversation.access.require("Send", address.path)
        context = SendingLink(conversation, link, address)
        size_max = context.message_size_bytes_max
        properties.update(context.properties)
        if conversation.namespace.id:
            properties[NAMESPACE_ID] = conversation.namespace.id
    properties[BATCH_SIZE] = ULong(min(BATCH_SIZE_BYTES_MAX, size_max))
    link.accept(max_message_size=size_max, properties=properties, credit=INGRESS_CREDIT)
    return context


def _attach_egress(conversation: Conversation, link: EgressLink) -> Context:
    source = link.source
    address = _address(source.address if source is not None else None)
    node = _node(conversation, link.session.context, address)
    context: Context
    if node is not None:
        context = ResponseLink(conversation, link, node)
    else:
        conversation.access.require("Listen", address.path)
        mode = RECEIVE_AND_DELETE if link.snd_settle_mode == SETTLED else PEEK_LOCK
        asked = read_session_filter(source)
        if asked is not None:
            return _attach_to_session(AcceptingLink(conversation, link, address, mode, asked))
        context = ReceivingLink(conversation, link, address, mode)
    link.accept(max_message_size=MESSAGE_SIZE_BYTES_MAX, properties=None)
    return context


def _attach_to_session(accepting: AcceptingLink) -> Context:
    """The link with its session, or the one that waits for it."""
    result = accepting.result
    if isinstance(result, ServiceError):
        raise result
    return accepting if result is None else result


def _address(text: object) -> Address:
    if not isinstance(text, str) or not text:
        raise ArgumentInvalid("The link has no address; set it to the path of an entity.")
    return parse_address(text)


def _node(conversation: Conversation, nodes: object, address: Address) -> RequestNode | None:
    """The request/response node at this address, one per AMQP session; None for entities."""
    assert isinstance(nodes, dict)
    key = address.path.lower() + ("/$management" if address.is_management else "")
    node = nodes.get(key)
    if node is None:
        if key == CBS:
            node = ClaimsNode(conversation)
        elif address.is_management:
            node = ManagementNode(conversation, address)
        else:
            return None
    assert isinstance(node, RequestNode)
    if isinstance(node, ManagementNode):
        node.check_attach()
    nodes[key] = node
    return node
