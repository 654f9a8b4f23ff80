"""Journals: the format, reading, recovery, ownership, writing."""
