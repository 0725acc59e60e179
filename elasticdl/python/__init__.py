"""The module paths of ElasticDL 1.0 and before, for command lines, images and clients that still use them."""
