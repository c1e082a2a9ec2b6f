"""Reading: what a query asks for, where it is, and messages as rows."""
