"""Clips: one plain shape on a plain ground, drawn analytically, and the captions for them."""
import math
import numpy as np
import torch

COLOURS = {
    "red": (220, 40, 40), "green": (40, 180, 70), "blue": (50, 90, 225), "yellow": (235, 205, 50),
    "purple": (150, 60, 190), "orange": (240, 130, 30), "white": (240, 240, 240), "cyan": (60, 205, 215),
}
GROUNDS = {"black": (12, 12, 16), "gray": (110, 110, 115), "navy": (18, 26, 74), "brown": (92, 58, 32)}
SHAPES = ["ball", "square", "triangle", "star", "ring"]
MOTIONS = ["moving left", "moving right", "moving up", "moving down",
           "standing still", "circling", "growing", "shrinking"]
SIZES = {"small": 0.16, "big": 0.22}


def fnv1a(text):
    h = 0x811C9DC5
    for b in text.encode():
        h = ((h ^ b) * 0x01000193) & 0xFFFFFFFF
    return h


def held_out(colour, shape, motion, ground):
    return fnv1a(f"{colour} {shape} {motion} {ground}") % 10 == 0


def combos(want_held_out=False):
    return [(c, s, m, g) for c in COLOURS for s in SHAPES for m in MOTIONS for g in GROUNDS
            if held_out(c, s, m, g) == want_held_out]


def coverage(shape, dx, dy, r):
    """Signed distance in pixels (positive inside) -> anti-aliased coverage. dx, dy: pixels from the centre."""
    if shape == "ball":
        d = r - torch.sqrt(dx * dx + dy * dy)
    elif shape == "square":
        d = 0.9 * r - torch.maximum(dx.abs(), dy.abs())
    elif shape == "ring":
        d = 0.28 * r - (torch.sqrt(dx * dx + dy * dy) - 0.78 * r).abs()
    elif shape == "triangle":  # point up, circumradius 1.2 r, lowered a little so that it sits in the middle
        cy, inner = dy - 0.15 * r, 0.6 * r
        d = inner - torch.maximum(cy, dx.abs() * (math.sqrt(3) / 2) - cy * 0.5)
    else:  # star: five points, folded into one half sector
        a = torch.remainder(torch.atan2(dx, -dy) + math.pi / 5, 2 * math.pi / 5) - math.pi / 5
        q = torch.sqrt(dx * dx + dy * dy)
        x, y = q * a.abs().sin(), q * a.cos()
        ox, oy = 0.0, 1.25
        ix, iy = 0.62 * math.sin(math.pi / 5), 0.62 * math.cos(math.pi / 5)
        nx, ny = oy - iy, ix - ox
        n = math.hypot(nx, ny)
        nx, ny = nx / n, ny / n
        d = r * (nx * ox + ny * oy) - (nx * x + ny * y)
    return (d + 0.5).clamp(0, 1)


def track(motion, size, rng, frames, total):
    """Centre (fractions of width and height) and radius (fraction of the short side) of each frame."""
    t = np.arange(frames, dtype=np.float64)
    r0 = SIZES[size] * rng.uniform(0.95, 1.05)
    r = np.full(frames, r0)
    if motion.startswith("moving"):
        way = motion.split()[1]
        v = rng.uniform(0.35, 0.6) / 24 * t
        along, across = rng.uniform(0.0, 1.0), rng.uniform(0.3, 0.7)
        if way in ("left", "right"):
            x, y = along + (v if way == "right" else -v), np.full(frames, across)
        else:
            x, y = np.full(frames, across), along + (v if way == "down" else -v)
    elif motion == "circling":
        p = rng.uniform(0, 2 * math.pi) + 2 * math.pi * t / 24
        x, y = rng.uniform(0.46, 0.54) + 0.25 * np.cos(p), rng.uniform(0.46, 0.54) + 0.25 * np.sin(p)
    else:
        lo, hi = (0.3, 0.7) if motion == "standing still" else (0.4, 0.6)
        x, y = np.full(frames, rng.uniform(lo, hi)), np.full(frames, rng.uniform(lo, hi))
        if motion != "standing still":
            g = 3.0 ** (t / max(total - 1, 1) - 0.5)
            r = r0 * (g if motion == "growing" else 1 / g)
    return x, y, r


def draw(combo, size, rng, frames=25, width=128, height=128, total=None, crop=0, skip=0):
    """float32 tensor (3, frames, height, width) in [-1, 1]. total: frames over which growth is threefold.
    crop: only a square window of that many pixels near the shape. skip: begin that many frames into the motion."""
    colour, shape, motion, ground = combo
    x, y, r = (a[skip:] for a in track(motion, size, rng, frames + skip, total or frames + skip))
    f = lambda a: torch.tensor(a, dtype=torch.float32).view(-1, 1, 1)
    px = torch.arange(width, dtype=torch.float32).view(1, 1, -1) + 0.5
    py = torch.arange(height, dtype=torch.float32).view(1, -1, 1) + 0.5
    if crop:
        reach = r[len(r) // 2] * min(width, height) + 8
        cut = []
        for c, n in ((x, width), (y, height)):
            at = (c[len(c) // 2] % 1) * n + rng.uniform(-reach, reach) - crop / 2
            cut.append(int(min(max(at, 0), n - crop)))
        px, py = px[:, :, cut[0]:cut[0] + crop], py[:, cut[1]:cut[1] + crop]
    dx = torch.remainder(px - f(x) * width + width / 2, width) - width / 2
    dy = torch.remainder(py - f(y) * height + height / 2, height) - height / 2
    cov = coverage(shape, dx, dy, f(r) * min(width, height))[None]
    fg = torch.tensor(COLOURS[colour], dtype=torch.float32).view(3, 1, 1, 1)
    bg = torch.tensor(GROUNDS[ground], dtype=torch.float32).view(3, 1, 1, 1) + 10.0 * (0.5 - py / height)
    return (bg + (fg - bg) * cov) / 127.5 - 1


def caption(combo, size, rng):
    """One of several wordings, parts left out at random."""
    colour, shape, motion, ground = combo
    on = rng.random() < 0.85
    has_motion = rng.random() < 0.93
    words = [size] if rng.random() < 0.5 else []
    if rng.random() < 0.96:
        words.append(colour)
    words.append(shape if rng.random() < 0.97 else "shape")
    if rng.random() < 0.8:
        first = words[0][0]
        words.insert(0, "an" if first in "aeiou" else "a")
    text = " ".join(words)
    if has_motion:
        text += rng.choice([" ", " ", ", ", ", ", " is "]) + motion
    if on:
        text += rng.choice([" on a ", " on a ", " on a ", " on ", ", on a "]) + ground + " background"
    if rng.random() < 0.15:
        text += "."
    return text
