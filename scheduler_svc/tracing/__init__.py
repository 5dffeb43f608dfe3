"""Spans of requests for OpenTelemetry: an optional extra, imported only when it is switched on."""
