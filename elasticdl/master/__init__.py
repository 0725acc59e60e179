"""The master: the shell around core. It receives events, lets core decide, acts, and keeps the journal."""
