"""Measures the hosts of a job before it trains; see docs/check.md."""
