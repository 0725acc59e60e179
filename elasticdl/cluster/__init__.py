"""Where replicas run: one `Cluster` protocol, and its local and Kubernetes implementations."""
