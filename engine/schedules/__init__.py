"""Scheduled prompts of sessions: their files, their controls, their next run."""
