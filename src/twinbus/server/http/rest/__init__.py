"""Messages over plain HTTP requests."""
