"""One product for every number of rows, of few configs.

tilecore dispatch gemm --n 1024 --k 1024 --m 1:512 --output table.json    # --tune measures
python examples/dynamic_shapes.py table.json
"""

import sys

import torch

import tilecore

try:
    matmul = tilecore.Dispatcher(sys.argv[1] if len(sys.argv) > 1 else "table.json")
except tilecore.errors.InvalidDispatchTable as error:
    sys.exit(f"{error}\n{__doc__}")
print(matmul)
print(matmul.compile_all(), "kernels")

weights = torch.randn(1024, 1024)
for rows in (1, 3, 16, 77, 512):
    x = torch.randn(rows, 1024)
    y = matmul(x, weights)
    error = (y.double() - x.double() @ weights.double()).abs().max().item()
    assert error < 1e-2
    print(f"{rows:4} rows: {matmul.config_for(m=rows)}, error {error:.1e}")
