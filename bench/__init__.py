"""Measurements: speed against peers, depth, number of queues.  `make bench`; see README.md here."""
