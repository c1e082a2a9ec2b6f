"""Messages as bytes: their sections, their stored form, their limits, what names them."""
