"""Matrix products on GPUs: which instruction runs, who holds what, and what runs beside it."""
