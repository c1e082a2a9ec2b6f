"""Measurements: speed against peers, depth, number of queues.  See README.md here."""
