"""Faults of the real system: injected into system calls, file size limits, full file systems."""
