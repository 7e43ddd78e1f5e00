"""Numbers of this process's task for Prometheus and TensorBoard; see docs/operate/metrics.md."""
