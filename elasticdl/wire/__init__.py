"""How the processes of a job talk: the control stream (gRPC) and the tensor frames (ZeroMQ)."""

PROTOCOL = 2  # of the control stream: replicas of another one are refused
