"""Fuzz targets: everything that takes bytes from outside, under a coverage-guided fuzzer."""
