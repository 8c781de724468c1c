"""The coordinator, and where its trials are measured."""
