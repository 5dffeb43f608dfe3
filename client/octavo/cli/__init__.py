"""The `octavo` command: one file for each of its subcommands, `main.py` first."""
