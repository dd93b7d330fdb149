"""The Wan VAE run over a whole clip at once: equal to the chunk-by-chunk form of diffusers (see `check`)."""
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan

CONFIG = dict(base_dim=16, dim_mult=[1, 2, 4], num_res_blocks=1, temperal_downsample=[True, True], z_dim=16,
              attn_scales=[], dropout=0.0, in_channels=12, out_channels=12, patch_size=2,
              scale_factor_spatial=8, scale_factor_temporal=4)


def make(**over):
    return AutoencoderKLWan(**{**CONFIG, **over})


def fold(x):  # pixels 2x2 into channels, in the order of diffusers' patchify
    b, c, t, h, w = x.shape
    x = x.view(b, c, t, h // 2, 2, w // 2, 2)
    return x.permute(0, 1, 6, 4, 2, 3, 5).reshape(b, c * 4, t, h // 2, w // 2)


def unfold(x):
    b, c, t, h, w = x.shape
    x = x.view(b, c // 4, 2, 2, t, h, w)
    return x.permute(0, 1, 4, 5, 3, 6, 2).reshape(b, c // 4, t, h * 2, w * 2)


def frames2d(fn, x):
    b, c, t, h, w = x.shape
    y = fn(x.permute(0, 2, 1, 3, 4).reshape(b * t, c, h, w))
    return y.view(b, t, *y.shape[1:]).permute(0, 2, 1, 3, 4)


def resample(m, x):
    if m.mode == "upsample3d":
        b, c, t, h, w = x.shape
        if t > 1:
            y = m.time_conv(x[:, :, 1:]).reshape(b, 2, c, t - 1, h, w)
            y = y.permute(0, 2, 3, 1, 4, 5).reshape(b, c, 2 * (t - 1), h, w)
            x = torch.cat([x[:, :, :1], y], 2)
    x = frames2d(m.resample, x)
    if m.mode == "downsample3d" and x.shape[2] > 1:
        x = torch.cat([x[:, :, :1], F.conv3d(x, m.time_conv.weight, m.time_conv.bias, stride=(2, 1, 1))], 2)
    return x


def encode(vae, x):
    """(b, 3, 4k+1, h, w) -> mean and logvar, each (b, 16, k+1, h/8, w/8)."""
    e = vae.encoder
    x = e.conv_in(fold(x))
    for m in e.down_blocks:
        x = resample(m, x) if hasattr(m, "resample") else m(x)
    x = e.conv_out(F.silu(e.norm_out(e.mid_block(x))))
    return vae.quant_conv(x).chunk(2, 1)


def decode(vae, z):
    d = vae.decoder
    x = d.mid_block(d.conv_in(vae.post_quant_conv(z)))
    for up in d.up_blocks:
        for r in up.resnets:
            x = r(x)
        if up.upsamplers is not None:
            x = resample(up.upsamplers[0], x)
    return unfold(d.conv_out(F.silu(d.norm_out(x))))


@torch.no_grad()
def check(vae):
    x = torch.rand(1, 3, 17, 64, 48) * 2 - 1
    want = vae.encode(x).latent_dist
    mean, logvar = encode(vae, x)
    z = torch.randn_like(mean)
    e = (mean - want.mean).abs().max().item()
    d = (decode(vae, z).clamp(-1, 1) - vae.decode(z).sample).abs().max().item()
    return e, d


if __name__ == "__main__":
    import time
    torch.set_num_threads(2)
    for over in (dict(base_dim=16, dim_mult=[1, 2, 4]), dict(base_dim=24, dim_mult=[1, 2, 4]), dict(), dict(base_dim=32,dim_mult=[1,1,2])):
        v = make(**over)
        print(over, sum(p.numel() for p in v.parameters()) / 1e6, "M", "errors", check(v))
        for fmt in (torch.contiguous_format, torch.channels_last_3d):
            for p in v.parameters():
                if p.ndim == 5:
                    p.data = p.data.contiguous(memory_format=fmt)
            for shape in ((16, 3, 1, 64, 64), (4, 3, 9, 64, 64)):
                x = torch.rand(shape).contiguous(memory_format=fmt)
                ts = []
                for _ in range(3):
                    t = time.time()
                    m, l = encode(v, x)
                    (decode(v, m) - x).square().mean().backward()
                    ts.append(time.time() - t)
                print(fmt, shape, min(ts))
