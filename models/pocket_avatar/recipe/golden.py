"""Write down what the sampler draws with the exported weights in float32, from the engine's noise: a stream of six
blocks, longer than the window. tests/engine/avatar_golden_test.cc compares the engine with it."""
import argparse, json, os
import numpy as np
import torch
from safetensors.torch import load_file, save_file
import common as C
import avatar as A, face as F, read_face as R, sound as S, vae as V

SEED = 0x1234567890
LOOK = ("tan", "red", "navy", "happy")
BLOCKS = (2, 2, 1, 2, 0, 2)  # states
SHOWN = (0, 1, 4, 8, 9, 20, 21, 32, 33, 38, 44, 45, 50, 56, 57, 60, 64, 68)  # pictures; those at the blocks' borders too


def philox(block, frame, seed, stream=0):
    """Philox4x32-10 of the counters (block, frame, 0, stream): uint32 [len(block), 4]."""
    mask = np.uint64(0xFFFFFFFF)
    low, high = lambda x: x & mask, lambda x: x >> np.uint64(32)
    zero = np.zeros(len(block), np.uint64)
    c = [block.astype(np.uint64), zero + np.uint64(frame), zero, zero + np.uint64(stream)]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [high(b) ^ c[1] ^ np.uint64(k[0]), low(b), high(a) ^ c[3] ^ np.uint64(k[1]), low(a)]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1)


def noise(frames, shape, seed):
    """The engine's portable noise to within rounding, [channels, frames, h, w]: Box-Muller on words 0, 1 and 2, 3."""
    out = []
    for frame in range(frames):
        words = philox(np.arange(np.prod(shape) // 4), frame, seed).astype(np.float64)
        radius = np.sqrt(-2 * np.log((words[:, 0::2] + 0.5) * 2.0 ** -32))
        angle = 2 * np.pi * words[:, 1::2] * 2.0 ** -32
        out.append(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 2).reshape(shape))
    return torch.from_numpy(np.stack(out, 1).astype(np.float32))


def chance(seed):
    """The engine's words for the gestures."""
    for k in range(2 ** 32):
        yield int(philox(np.array([k]), 0, seed, 1)[0, 0])


def heard():
    """A stream's samples, of eight bits so that the fixture is small, and the state of each picture."""
    rng, n = np.random.default_rng(2_000_003), 12 * S.HOP
    sound = S.speech(rng, len(BLOCKS) * n) * np.repeat(np.equal(BLOCKS, 2), n)
    return np.round(128 + 127 * sound.clip(-1, 1)).astype(np.uint8)[3 * S.HOP:], np.repeat(BLOCKS, 12)[3:]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--weights", default=C.EXPORT, help="the exported folder")
    ap.add_argument("--to", default=os.path.join(C.HERE, "..", "..", "..", "tests", "engine", "avatar"))
    args = ap.parse_args()
    torch.set_num_threads(1)
    vae = V.make()
    vae.load_state_dict({k: v.float() for k, v in load_file(
        os.path.join(args.weights, "vae", "diffusion_pytorch_model.safetensors")).items()})
    config = json.load(open(os.path.join(args.weights, "vae", "config.json")))
    stats = {k: torch.tensor(config["latents_" + k]) for k in ("mean", "std")}
    model = A.exported(args.weights)
    levels, state = heard()
    sound = (levels.astype(float) - 128) / 128
    signal = torch.from_numpy(S.latent_rows(S.rows(sound, state, S.gestures(chance(SEED), state))))
    drawn = noise(len(signal), (16, 12, 12), SEED)
    with torch.inference_mode():
        z = A.sample(model, signal[None], model.rows(A.captions([F.caption(LOOK)])), noise=drawn[None])
        pictures = C.to_bytes(V.decode(vae, C.vae_rows(z, stats))[0])
    loud = S.loudness(sound) * (state == 2)
    opened = [R.opening(p) for p in pictures]
    print(f"{len(pictures)} pictures; mouth and loudness {np.corrcoef(opened, loud)[0, 1]:.3f}; {R.colours(pictures[30])}, {R.mood(pictures)}")
    seen = [pictures[k] for k in SHOWN]
    gaze = [9 if g is None else g for g in map(R.gaze, seen)]
    readings = [[R.opening(p), R.lids(p), R.shut(p), g, R.bend(p), R.frown(p)] for p, g in zip(seen, gaze)]
    os.makedirs(args.to, exist_ok=True)
    save_file(dict(levels=torch.from_numpy(levels), rows=signal.contiguous(),
                   noise=drawn[:, [0, len(signal) - 1]].contiguous(), pictures=torch.tensor(SHOWN, dtype=torch.int32),
                   readings=torch.tensor(readings, dtype=torch.float32)),
              os.path.join(args.to, "stream.safetensors"))
    across = len(SHOWN) // 3
    C.grid([seen[i:i + across] for i in range(0, len(seen), across)], os.path.join(args.to, "pictures.png"))
