"""Real processes that are killed: at random, at a chosen system call, stopped, forked, racing."""
