"""Only the computation: a transformer's block in plain torch, compiled to tile programs.

python examples/compute.py
"""

import torch
import torch.nn.functional as F

import tilecore

HEADS = 8


def rotated(x, cos, sin):
    """Return heads with rotary embeddings: elements half a head apart are turned together."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


@tilecore.compute
def block(x, w):
    rows, length, width = x.shape
    q, k, v = (
        part.reshape(rows, length, HEADS, width // HEADS).transpose(1, 2)
        for part in (F.rms_norm(x, (width,), w["norm1"]) @ w["qkv"]).chunk(3, dim=-1)
    )
    q, k = (rotated(part, w["cos"][:length], w["sin"][:length]) for part in (q, k))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + y.transpose(1, 2).reshape(rows, length, width) @ w["out"]
    h = F.rms_norm(x, (width,), w["norm2"])
    return x + (F.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def weights(width: int, hidden: int, longest: int = 2048) -> dict[str, torch.Tensor]:
    """Return random weights whose products keep the variance, and the angles of places."""
    shapes = {
        "qkv": (width, 3 * width), "out": (width, width), "gate": (width, hidden),
        "up": (width, hidden), "down": (hidden, width),
    }  # fmt: skip
    found = {name: torch.randn(shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    head = width // HEADS
    speeds = 10000 ** -(torch.arange(0, head, 2) / head)
    angles = torch.outer(torch.arange(longest), speeds).repeat(1, 2)
    found |= {"cos": angles.cos(), "sin": angles.sin()}
    return found | {"norm1": torch.ones(width), "norm2": torch.ones(width)}


if __name__ == "__main__":
    x, w = torch.randn(2, 256, 512), weights(512, 1376)
    print(block.explain(x, w))
    print(block.programs(x, w)[2])  # the tile program of attention
    found = block(x, w)
    exact = block.function(x.double(), {name: tensor.double() for name, tensor in w.items()})
    print(f"largest error: {(found - exact).abs().max() / exact.abs().max():.1e}")
