"""Functions of vectors on CPUs, in LLVM IR and TIR: exp and its kin, narrow floats, divisions."""
