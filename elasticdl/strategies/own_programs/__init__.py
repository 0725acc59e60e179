"""Programs of the user's own in every role: what such a job must name. Running them is not part of this release yet."""
