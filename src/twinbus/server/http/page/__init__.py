"""What the web page asks over HTTP."""
