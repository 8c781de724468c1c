"""Recommendations as REST and the command line give them, from memory where they hold."""
