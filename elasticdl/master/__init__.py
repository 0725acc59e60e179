"""The master: the shell around core. It hears events, asks core, acts, and keeps the journal."""
