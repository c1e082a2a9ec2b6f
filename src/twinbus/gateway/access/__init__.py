"""Who may do what: shared access signatures, web tokens, and what a connection may claim."""
