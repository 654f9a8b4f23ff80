"""Migrating a whole exported root of an older system: plan, staging, publishing."""
