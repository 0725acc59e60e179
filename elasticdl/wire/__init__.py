"""How the processes of a job communicate: the control stream (gRPC) and the tensor frames (ZeroMQ)."""

# Of the control stream and the tensor frames. The master refuses replicas with another protocol. Raise it with each
# message or operation that the other side has to know.
PROTOCOL = 4
