"""What a job is: its description, its names, the parameters it asks the servers to hold."""
