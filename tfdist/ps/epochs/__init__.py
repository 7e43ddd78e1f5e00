"""The rounds at the end of an epoch: workers sum their metrics and agree to stop."""
