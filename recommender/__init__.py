"""The decisions: which configs to try, which one to recommend. Pure: no SQL, HTTP, Ray, TVM."""
