"""What Treering does to a disk, declared for the explorer and for error injection."""
