"""From a graph to kernels: which nodes run together, and in which order."""
