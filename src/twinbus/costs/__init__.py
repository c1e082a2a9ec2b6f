"""What the metered operations come to, and what pairing will: arithmetic, without any I/O."""
