"""An adversary of the index: wrong files in its place, and the same answers as without any."""
