"""Training on parameter servers: workers pull values from servers and push gradients to them."""
