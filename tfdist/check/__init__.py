"""Measures the hosts of a job before it trains; see docs/operate/check.md."""
