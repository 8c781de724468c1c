"""LLVM IR for AMD GPUs: kernels from TIR, device functions, what the assembly says about both."""
