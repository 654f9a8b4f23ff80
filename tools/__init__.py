"""The command line: commands and reports for people."""
