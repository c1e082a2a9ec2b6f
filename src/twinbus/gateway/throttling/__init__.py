"""Who is told to come back later."""
