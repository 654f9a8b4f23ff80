"""Which recorded requests belong to what a model put into a session."""
