"""The web viewer and its HTTP interface (needs the extra `serve`)."""
