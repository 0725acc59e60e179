"""What user code imports to train elastically with a loop of its own."""
