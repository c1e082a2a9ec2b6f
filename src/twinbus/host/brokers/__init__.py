"""Broker processes, and the broker inside this one: started, watched, ended."""
