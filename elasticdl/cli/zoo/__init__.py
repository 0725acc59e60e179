"""`elasticdl zoo`: images of a model zoo: a Dockerfile, the build, the push."""
