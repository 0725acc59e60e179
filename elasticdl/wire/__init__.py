"""How the processes of a job talk: the control stream (gRPC) and the tensor frames (ZeroMQ)."""
