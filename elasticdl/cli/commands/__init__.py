"""The commands, one module each; `elasticdl.cli.main` has the table of them."""
