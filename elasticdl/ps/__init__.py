"""The parameter servers: row store, optimizers, server and client."""
