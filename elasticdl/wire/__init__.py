"""How the processes of a job talk: the control stream (gRPC) and the tensor frames (ZeroMQ)."""

# Of the control stream and the tensor frames. The master refuses replicas of another one, so that nobody waits for
# what the other side never says: raise it with each message or operation that one of them has to know.
PROTOCOL = 4
