"""ElasticDL: elastic deep learning on machines that come and go."""

__version__ = "2.0.0.dev0"
