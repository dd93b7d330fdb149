"""The model: the pocket model's transformer, block-causal over time, whose time vector of each latent frame has the
sound and the state added. Also its text, its sampler, and the programs' training state."""
import json, math, os
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
import common as C
import dit as D
import face, make_tokenizer, sound


def make_text():
    return D.make_text(vocab_size=len(face.WORDS) + 32)


class Avatar(torch.nn.Module):
    def __init__(self, **size):
        super().__init__()
        self.dit, self.text = D.make_dit(**size), make_text()
        width = self.dit.config.num_attention_heads * self.dit.config.attention_head_dim
        self.audio_embedder = torch.nn.ModuleDict(dict(linear_1=torch.nn.Linear(4 * sound.COLUMNS, width),
                                                       linear_2=torch.nn.Linear(width, width)))

    def rows(self, ids):
        """The text encoder's rows of captions, whose padding is one row that stands for all of it."""
        rows, mask = D.text_rows(self.text, ids)
        n = mask.sum(1)
        bias = torch.zeros(ids.shape).masked_fill(ids.eq(0), float("-inf"))
        bias[:, -1] = (make_tokenizer.MAX_LENGTH - n).float().log()
        return rows, bias[:, None, None]

    def forward(self, z, t, signal, text):
        """z [b, 16, f, h, w], t [b], signal [b, f, 148], text of rows(): velocities like z."""
        rows, bias = text
        m = self.dit
        b, c, f, h, w = z.shape
        heads, h2, w2 = m.config.num_attention_heads, h // 2, w // 2
        x = z.view(b, c, f, h2, 2, w2, 2).permute(0, 2, 3, 5, 1, 4, 6).reshape(b, f, h2 * w2, c * 4)
        x = F.linear(x, m.patch_embedding.weight.flatten(1), m.patch_embedding.bias)
        e = m.condition_embedder
        heard = self.audio_embedder["linear_2"](F.silu(self.audio_embedder["linear_1"](signal)))
        temb = e.time_embedder(e.timesteps_proj(t).to(z.dtype))[:, None] + heard  # [b, f, d]
        mod = e.time_proj(F.silu(temb)).unflatten(2, (6, -1))
        ctx = e.text_embedder(rows)
        cos, sin = (r[0, :, 0] for r in m.rope(z))
        turn = cos[:, 0::2].to(z.dtype), sin[:, 1::2].to(z.dtype)
        seen = visible(f).repeat_interleave(h2 * w2, 0).repeat_interleave(h2 * w2, 1)
        for blk in m.blocks:
            x = block(x, ctx, bias, mod, turn, seen, heads, D.weights(blk))
        shift, scale = (m.scale_shift_table[:, None] + temb[:, :, None]).unbind(2)
        x = m.proj_out(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, :, None]) + shift[:, :, None])
        return x.view(b, f, h2, w2, 1, 2, 2, c).permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(b, c, f, h, w)


def visible(frames):
    """bool [frames, frames]: latent frame i sees j: those of its own block and of the three before."""
    block = torch.arange(frames) // C.BLOCK
    apart = block[:, None] - block[None]
    return (apart >= 0) & (apart < C.WINDOW)


def block(x, ctx, bias, mod, turn, seen, n, p):
    """One block of the transformer on x [b, f, tokens of a latent frame, d]; mod [b, f, 6, d]."""
    table, wqkv, bqkv, nq, nk, wo, bo, n2w, n2b, wq2, bq2, wkv2, bkv2, nq2, nk2, wo2, bo2, w1, b1, w2, b2 = p
    s1, g1, o1, s2, g2, o2 = (table[:, None] + mod).unsqueeze(3).unbind(2)
    norm = lambda a, *affine: F.layer_norm(a, a.shape[-1:], *affine, eps=1e-6)
    q, k, v = F.linear(norm(x) * (1 + g1) + s1, wqkv, bqkv).flatten(1, 2).chunk(3, -1)
    q, k = (D.rotate(D.heads(D.rms(a, w), n), *turn) for a, w in ((q, nq), (k, nk)))
    a = F.scaled_dot_product_attention(q, k, D.heads(v, n), attn_mask=seen).transpose(1, 2).flatten(2)
    x = x + F.linear(a, wo, bo).view(x.shape) * o1
    k, v = F.linear(ctx, wkv2, bkv2).chunk(2, -1)
    q = D.rms(F.linear(norm(x, n2w, n2b), wq2, bq2), nq2).flatten(1, 2)
    a = F.scaled_dot_product_attention(D.heads(q, n), D.heads(D.rms(k, nk2), n), D.heads(v, n), attn_mask=bias)
    x = x + F.linear(a.transpose(1, 2).flatten(2), wo2, bo2).view(x.shape)
    h = norm(x) * (1 + g2) + s2
    return x + F.linear(F.gelu(F.linear(h, w1, b1), approximate="tanh"), w2, b2) * o2


def sample(model, signal, text, generator=None, size=12, noise=None):
    """Latents [b, 16, f, size, size] of a stream, from noise of that shape or of a generator. A step's keys and values are those of the same step of earlier blocks,
    so all blocks can take a step at once; a real stream takes a block's steps one after another, to the same values."""
    b, f = signal.shape[:2]
    x = torch.randn((b, 16, f, size, size), generator=generator) if noise is None else noise
    for t, after in zip(C.TIMES, C.TIMES[1:] + (0,)):
        v = model(x, torch.full((b,), t), signal, text)
        x = x + (after - t) / 1000 * v
    return x


def captions(words_of):
    """Token ids [b, 17] of captions; the last column stands for all the padding."""
    place = {w: i + 3 for i, w in enumerate(face.WORDS)}
    ids = torch.zeros(len(words_of), 17, dtype=torch.long)
    for i, text in enumerate(words_of):
        row = [place[w] for w in text.split()] + [1]
        ids[i, :len(row)] = torch.tensor(row)
    return ids


def exported(folder):
    """An Avatar with the weights of an exported folder, or of the pocket model where `folder` has none of its own: then
    the words and the sound are new."""
    load = lambda name: {k: v.float() for k, v in load_file(os.path.join(folder, name)).items()}
    weights = load("transformer/diffusion_pytorch_model.safetensors")
    model = Avatar(**D.size(weights))
    prefix = "condition_embedder.audio_embedder."
    heard = {k[len(prefix):]: weights.pop(k) for k in [k for k in weights if k.startswith(prefix)]}
    model.dit.load_state_dict(weights)
    words = load("text_encoder/model.safetensors")
    if heard:
        model.audio_embedder.load_state_dict(heard)
    else:
        words = {k: v for k, v in words.items() if "shared" not in k and "embed_tokens" not in k}
        model.audio_embedder["linear_2"].weight.data.mul_(0.1)
        model.audio_embedder["linear_2"].bias.data.zero_()
    missing, extra = model.text.load_state_dict(words, strict=False)
    assert not extra and all("shared" in k or "embed_tokens" in k for k in missing), (missing, extra)
    return model
