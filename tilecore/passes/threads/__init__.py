"""Programs written per thread: for CPUs one thread runs them, or lanes of vectors do."""
