"""Models of all-reduce jobs: every worker holds the whole model and its optimizer."""
