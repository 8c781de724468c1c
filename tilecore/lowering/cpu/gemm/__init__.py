"""T.gemm on CPUs: packed panels, dot products of groups, AMX, few rows."""
