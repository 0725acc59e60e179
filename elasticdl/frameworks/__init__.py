"""Keras and PyTorch models behind one protocol: numpy arrays at the border, framework objects inside."""
