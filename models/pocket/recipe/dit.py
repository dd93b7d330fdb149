"""The tiny Wan DiT and UMT5, and a lean forward pass over the diffusers module's own parameters (see `check`)."""
import math
import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel
from transformers import UMT5Config, UMT5EncoderModel

STD_FLOOR = 0.5  # channels that carry less than this are not blown up
DIT = dict(patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=32, in_channels=16, out_channels=16,
           text_dim=64, freq_dim=256, ffn_dim=512, num_layers=6, cross_attn_norm=True,
           qk_norm="rms_norm_across_heads", eps=1e-6, rope_max_seq_len=128)
TEXT = dict(vocab_size=67, d_model=64, d_kv=16, d_ff=160, num_layers=2, num_decoder_layers=2, num_heads=4,
            relative_attention_num_buckets=32, relative_attention_max_distance=128, dropout_rate=0.0,
            layer_norm_epsilon=1e-6, feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1,
            decoder_start_token_id=0, tie_word_embeddings=True, use_cache=True)


def make_dit(**over):
    m = WanTransformer3DModel(**{**DIT, **over})
    for n, p in m.named_parameters():
        if n.endswith("bias"):
            p.data.zero_()
        elif p.ndim == 2:
            torch.nn.init.normal_(p, std=0.7 / math.sqrt(p.shape[1]))
    for b in m.blocks:
        b.scale_shift_table.data.normal_(std=0.02)
        b.scale_shift_table.data[:, [2, 5]] += 0.3
        b.attn2.to_out[0].weight.data.mul_(0.3)
    m.scale_shift_table.data.normal_(std=0.02)
    m.condition_embedder.time_proj.weight.data.mul_(0.1)
    m.proj_out.weight.data.mul_(0.1)
    return m


def size(state):
    """The arguments of make_dit for the weights of a checkpoint."""
    return dict(num_layers=1 + max(int(k.split(".")[1]) for k in state if k.startswith("blocks.")),
                num_attention_heads=len(state["patch_embedding.weight"]) // DIT["attention_head_dim"],
                ffn_dim=len(state["blocks.0.ffn.net.0.proj.weight"]))


def deepen(state, count):
    """The weights of a DiT of `count` blocks that computes the same: copies of blocks, spread over the depth, whose
    last matrices are zero."""
    old, out = size(state)["num_layers"], {}
    fresh = {(j + 1) * old // (count - old + 1) - 1 for j in range(count - old)}  # the blocks that a copy follows
    assert len(fresh) == count - old, "at most twice as many blocks"
    place = 0
    for i in range(old):
        for copy in [False] + [True] * (i in fresh):
            for k, v in state.items():
                if k.startswith(f"blocks.{i}."):
                    name = k.split(".", 2)[2]
                    zero = copy and any(name.startswith(z) for z in ("attn1.to_out", "attn2.to_out", "ffn.net.2"))
                    out[f"blocks.{place}.{name}"] = torch.zeros_like(v) if zero else v.clone()
            place += 1
    return {**{k: v for k, v in state.items() if not k.startswith("blocks.")}, **out}


def make_text(**over):
    m = UMT5EncoderModel(UMT5Config(**{**TEXT, **over}))
    m.get_input_embeddings().weight.data.normal_(std=1.0)
    return m


def text_rows(text, ids):
    """ids (b, n), 0 = pad -> hidden states with the pad rows zero, and the mask."""
    mask = ids.ne(0)
    h = text(ids, attention_mask=mask.long()).last_hidden_state
    return h * mask[..., None], mask


def heads(x, n):
    return x.unflatten(2, (n, -1)).transpose(1, 2)


def rotate(x, cos, sin):
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def weights(b):
    """One block's parameters as a flat tuple, query, key and value joined (so that one compiled graph fits all)."""
    a, c = b.attn1, b.attn2
    return (b.scale_shift_table, torch.cat((a.to_q.weight, a.to_k.weight, a.to_v.weight)),
            torch.cat((a.to_q.bias, a.to_k.bias, a.to_v.bias)), a.norm_q.weight, a.norm_k.weight,
            a.to_out[0].weight, a.to_out[0].bias, b.norm2.weight, b.norm2.bias, c.to_q.weight, c.to_q.bias,
            torch.cat((c.to_k.weight, c.to_v.weight)), torch.cat((c.to_k.bias, c.to_v.bias)),
            c.norm_q.weight, c.norm_k.weight, c.to_out[0].weight, c.to_out[0].bias,
            b.ffn.net[0].proj.weight, b.ffn.net[0].proj.bias, b.ffn.net[2].weight, b.ffn.net[2].bias)


def rms(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def block(x, ctx, bias, mod, cos, sin, n, p):
    table, wqkv, bqkv, nq, nk, wo, bo, n2w, n2b, wq2, bq2, wkv2, bkv2, nq2, nk2, wo2, bo2, w1, b1, w2, b2 = p
    s1, g1, o1, s2, g2, o2 = (table + mod).unbind(1)
    d = x.shape[-1]
    h = F.layer_norm(x, (d,), eps=1e-6) * (1 + g1[:, None]) + s1[:, None]
    q, k, v = F.linear(h, wqkv, bqkv).chunk(3, -1)
    q, k = rotate(heads(rms(q, nq), n), cos, sin), rotate(heads(rms(k, nk), n), cos, sin)
    h = F.scaled_dot_product_attention(q, k, heads(v, n)).transpose(1, 2).flatten(2)
    x = x + F.linear(h, wo, bo) * o1[:, None]
    h = F.layer_norm(x, (d,), n2w, n2b, 1e-6)
    k, v = F.linear(ctx, wkv2, bkv2).chunk(2, -1)
    h = F.scaled_dot_product_attention(heads(rms(F.linear(h, wq2, bq2), nq2), n), heads(rms(k, nk2), n), heads(v, n),
                                       attn_mask=bias)
    x = x + F.linear(h.transpose(1, 2).flatten(2), wo2, bo2)
    h = F.layer_norm(x, (d,), eps=1e-6) * (1 + g2[:, None]) + s2[:, None]
    return x + F.linear(F.gelu(F.linear(h, w1, b1), approximate="tanh"), w2, b2) * o2[:, None]


def forward(m, z, t, text, bias=None, fn=block):
    """z (b, 16, f, h, w), t (b,) in 0..1000, text (b, n, d). bias (b, 1, 1, n): added to the cross-attention's
    logits; rows of padding are all alike, so log(k) on one of them stands for k of them."""
    b, c, f, h, w = z.shape
    n = m.config.num_attention_heads
    h2, w2 = h // 2, w // 2
    x = z.view(b, c, f, h2, 2, w2, 2).permute(0, 2, 3, 5, 1, 4, 6).reshape(b, f * h2 * w2, c * 4)
    x = F.linear(x, m.patch_embedding.weight.flatten(1), m.patch_embedding.bias)
    e = m.condition_embedder
    temb = e.time_embedder(e.timesteps_proj(t).to(z.dtype))
    mod = e.time_proj(F.silu(temb)).unflatten(1, (6, -1))
    ctx = e.text_embedder(text)
    cos, sin = (r[0, :, 0] for r in m.rope(z))
    cos, sin = cos[:, 0::2].to(z.dtype), sin[:, 1::2].to(z.dtype)
    for blk in m.blocks:
        x = fn(x, ctx, bias, mod, cos, sin, n, weights(blk))
    shift, scale = (m.scale_shift_table + temb[:, None]).unbind(1)
    x = m.proj_out(F.layer_norm(x, (x.shape[-1],), eps=1e-6) * (1 + scale[:, None]) + shift[:, None])
    return x.view(b, f, h2, w2, 1, 2, 2, c).permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(b, c, f, h, w)


@torch.no_grad()
def check(m):
    z, t = torch.randn(2, 16, 4, 8, 12), torch.tensor([900.0, 33.0])
    text = torch.randn(2, 24, DIT["text_dim"])
    text[:, 10:] = 0
    want = m(z, t, text, return_dict=False)[0]
    bias = torch.zeros(2, 1, 1, 11)
    bias[..., 10] = math.log(14)
    return (forward(m, z, t, text) - want).abs().max().item(), (forward(m, z, t, text[:, :11], bias) - want).abs().max().item()


if __name__ == "__main__":
    m = make_dit()
    print(sum(p.numel() for p in m.parameters()) / 1e6, "M; text", sum(p.numel() for p in make_text().parameters()) / 1e6,
          "M; largest differences from diffusers", check(m))
