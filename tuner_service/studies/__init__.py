"""Studies: the search engine for kernels that others run."""
