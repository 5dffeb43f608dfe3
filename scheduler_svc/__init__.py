"""The scheduler service: frontends (text), the core (tokens) and their supervisor."""
