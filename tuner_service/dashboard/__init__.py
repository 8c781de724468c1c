"""The dashboard: pages for people, made on the server of what REST answers. They change nothing."""
