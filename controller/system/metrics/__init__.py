"""Which metrics there are, and the endpoint that answers Prometheus."""
