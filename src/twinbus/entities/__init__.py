"""Service Bus semantics as pure state machines: no disk, no wire, no clock."""
