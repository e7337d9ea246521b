"""The command line: one thin file per command. Heavy packages are imported inside the commands."""
