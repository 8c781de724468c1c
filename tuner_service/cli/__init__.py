"""The command line: what it declares (``app*``), does and prints."""
