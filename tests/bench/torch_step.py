#!/usr/bin/env python3
"""A PyTorch forward of Wan 2.1's transformer at given sizes, to compare a device's step with.

Random weights, bf16, attention by scaled_dot_product_attention, compiled unless --eager. The maths of
Wan Team 2025 (arXiv 2503.20314), figure 10: modulated norms, self-attention with full-width RMS norms
and rotary positions, cross-attention over 512 text rows, GELU feed-forward; f32 residual stream, as
in the reference implementation. Prints one JSON line: seconds of a forward, the matmul rate measured
between the forwards, and the peak of device memory.
"""
import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

SIZES = {  # width, heads, feed-forward width, blocks
    "wan2.1-1.3b": (1536, 12, 8960, 30),
    "wan2.1-14b": (5120, 40, 13824, 40),
}
TEXT_ROWS = 512


def rotate(x, cosine, sine):
    """x [N, A, E]; pairs of neighbours turn by angles [N, 1, E / 2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm_q, self.norm_k = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1))

    def forward(self, x, context=None, angles=None):
        """x [N, D]; context (k, v) [S, A, E] made before, or None: over x itself."""
        q = self.split(self.norm_q(self.q(x)))
        k, v = context or (self.split(self.norm_k(self.k(x))), self.split(self.v(x)))
        if angles is not None:
            q, k = (rotate(y.float(), *angles).to(x.dtype) for y in (q, k))
        heads_first = (y.transpose(0, 1)[None] for y in (q, k, v))
        out = functional.scaled_dot_product_attention(*heads_first)
        return self.o(out[0].transpose(0, 1).flatten(-2))


class Block(nn.Module):
    def __init__(self, width, heads, ffn):
        super().__init__()
        self.attn1, self.attn2 = Attention(width, heads), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, 1e-6)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)
        self.table = nn.Parameter(torch.randn(6, width) / width**0.5)

    def forward(self, x, time_rows, text, angles):
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.table.float() + time_rows).unbind(0)

        def modulated(shift, scale):
            return (functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift).bfloat16()

        x = x + self.attn1(modulated(shift1, scale1), angles=angles).float() * gate1
        x = x + self.attn2(self.norm2(x.bfloat16()), context=text).float()
        hidden = functional.gelu(self.up(modulated(shift2, scale2)), approximate="tanh")
        return x + self.down(hidden).float() * gate2


def timed(work):
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    begun = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", choices=SIZES, default="wan2.1-1.3b")
    parser.add_argument("--tokens", type=int, default=32760)
    parser.add_argument("--blocks", type=int, help="fewer than the model's")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--device", default="cuda", help="cpu: to try the script")
    args = parser.parse_args()
    width, heads, ffn, layers = SIZES[args.arch]
    layers = args.blocks or layers
    torch.manual_seed(1)
    with torch.device(args.device):
        torch.set_default_dtype(torch.bfloat16)
        blocks = nn.ModuleList(Block(width, heads, ffn) for _ in range(layers)).eval()
        x = torch.randn(args.tokens, width, dtype=torch.float32)
        time_rows = torch.randn(6, width, dtype=torch.float32)
        text = tuple(torch.randn(TEXT_ROWS, heads, width // heads) for _ in range(2))
        turn = torch.rand(args.tokens, 1, width // heads // 2, dtype=torch.float32) * 6.28
        angles = (turn.cos(), turn.sin())
        a, b = torch.randn(args.tokens, width), torch.randn(width, ffn)
    if not args.eager:
        for block in blocks:
            block.compile()

    def forward():
        y = x
        for block in blocks:
            y = block(y, time_rows, text, angles)
        return y

    with torch.inference_mode():
        for _ in range(2):
            result = forward()
        assert torch.isfinite(result).all()
        seconds, gemm_seconds = [], []
        for _ in range(args.repeat):
            gemm_seconds.append(timed(lambda: a @ b))
            seconds.append(timed(forward))
    n, d, s = args.tokens, width, TEXT_ROWS
    flop = layers * (12 * n * d * d + 4 * n * n * d + 4 * n * s * d + 4 * n * d * ffn)
    rate = 2 * n * d * ffn / statistics.median(gemm_seconds)
    took = statistics.median(seconds)
    cuda = args.device == "cuda"
    print(json.dumps({
        "bench": "torch_step", "config": args.arch, "blocks": layers, "tokens": n,
        "compiled": not args.eager, "seconds": took, "gflops": flop / took * 1e-9,
        "gemm_gflops": rate * 1e-9, "share": flop / took / rate,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__}))


if __name__ == "__main__":
    main()
