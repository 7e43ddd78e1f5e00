"""TLS of the control plane and of HTTP: certificates, what is made of them, and why one fails."""
