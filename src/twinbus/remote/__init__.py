"""Broker processes: stores that are run behind a socket, seen from both of its ends."""
