"""Plain `torch.nn.Module` models."""
