"""As the first versions were laid out."""
