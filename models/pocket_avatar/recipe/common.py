"""What the programs of this recipe share: the modules of the pocket model's recipe, and files of training states."""
import os, sys, time
import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
POCKET = os.path.join(HERE, "..", "..", "pocket")
EXPORT = os.path.join(HERE, "..")
sys.path.append(os.path.join(POCKET, "recipe"))

BLOCK = 3  # latent frames of a block
WINDOW = 4  # blocks that a block sees, itself included
TIMES = (1000.0, 857.692, 602.151, 8.929)  # timesteps of the four Euler steps; the next of each is less noisy, then 0


def clip_rows(z, stats):
    """Latents of the VAE to the model's, whose channels have a deviation near 1."""
    return (z - stats["mean"].view(16, 1, 1, 1)) / stats["std"].view(16, 1, 1, 1)


def vae_rows(x, stats):
    return x * stats["std"].view(16, 1, 1, 1) + stats["mean"].view(16, 1, 1, 1)


def write(path, value):
    torch.save(value, path + ".tmp")
    os.replace(path + ".tmp", path)


class Clock:
    """Seconds of training, over all runs; a pause of the machine counts 20 seconds at most."""

    def __init__(self, spent=0.0):
        self.spent, self.last = spent, time.time()

    def tick(self):
        now = time.time()
        self.spent, self.last = self.spent + min(now - self.last, 20), now
        return self.spent


def grid(rows, path):
    """rows: lists of uint8 pictures [h, w, 3]."""
    from PIL import Image
    Image.fromarray(np.concatenate([np.concatenate(r, 1) for r in rows], 0)).save(path)


def to_bytes(x):
    """[3, n, h, w] in [-1, 1] to uint8 [n, h, w, 3]."""
    return ((x.detach().float().clamp(-1, 1).permute(1, 2, 3, 0) + 1) * 127.5).round().byte().cpu().numpy()
