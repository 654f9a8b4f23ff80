"""Tests of the pages, and what they need."""
