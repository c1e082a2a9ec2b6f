"""Orchestration: turns commands into facts, facts into deliveries."""
