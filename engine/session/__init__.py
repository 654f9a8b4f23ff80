"""Sessions: entries, the owned session, read-only views."""
