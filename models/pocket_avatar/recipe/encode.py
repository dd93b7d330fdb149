"""Draw streams of six blocks and encode them once: shards of latents with their signals in OUT/latents, and the statistics
of the latents in OUT/stats.pt. Run again to go on."""
import argparse, os, time
import numpy as np
import torch
import common as C
import face as F, sound as S, vae as V

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="work")
ap.add_argument("--shards", type=int, default=40, help="of 40 streams each")
ap.add_argument("--blocks", type=int, default=6)
ap.add_argument("--real", type=float, default=0.4, help="share of the streams in which espeak-ng speaks; 0 where it is not installed")
ap.add_argument("--threads", type=int, default=1)
args = ap.parse_args()
torch.set_num_threads(args.threads)
model = V.make()
model.load_state_dict(torch.load(os.path.join(args.out, "vae.pt"), weights_only=False)["model"])
for p in model.parameters():
    p.requires_grad_(False)
    if p.ndim == 5:
        p.data = p.data.contiguous(memory_format=torch.channels_last_3d)
folder = os.path.join(args.out, "latents")
os.makedirs(folder, exist_ok=True)
ALL = F.looks()
for k in range(args.shards):
    name = os.path.join(folder, f"{k:03d}.pt")
    if os.path.exists(name):
        continue
    rng, start = np.random.default_rng(50000 + k), time.time()
    z, signal, look = [], [], []
    for _ in range(40):
        sound, state, gesture = S.drawn(rng, args.blocks, real=args.real)
        look.append(int(rng.integers(len(ALL))))
        x = F.draw(ALL[look[-1]], F.motion(sound, state, gesture))[None]
        with torch.inference_mode():
            z.append(V.encode(model, x.contiguous(memory_format=torch.channels_last_3d))[0][0].contiguous().half())
        signal.append(torch.from_numpy(S.latent_rows(S.rows(sound, state, gesture))))
    z = torch.stack(z)
    C.write(name, dict(z=z, signal=torch.stack(signal), look=torch.tensor(look)))
    stats = os.path.join(args.out, "stats.pt")
    if not os.path.exists(stats):
        f = z.float().transpose(0, 1).flatten(1)
        C.write(stats, dict(mean=f.mean(1), std=f.std(1).clamp(min=0.5)))
    print(f"{name} {tuple(z.shape)} {time.time() - start:.1f} s", flush=True)
