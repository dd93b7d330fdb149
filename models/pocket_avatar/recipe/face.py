"""A drawn face, its captions, and how it moves with a sound."""
import numpy as np
import torch
import sound as S

SIZE = 96
SKINS = {"pale": (250, 222, 196), "tan": (226, 172, 122), "brown": (160, 104, 66), "dark": (98, 62, 44)}
HAIRS = {"black": (28, 26, 30), "blond": (236, 202, 96), "red": (188, 74, 34), "gray": (150, 150, 156)}
GROUNDS = {"blue": (70, 110, 190), "green": (74, 146, 96), "navy": (24, 34, 84), "white": (238, 238, 240)}
MOODS = ("calm", "happy", "stern")
WORDS = ["a", "with", "and", "on", "face", "skin", "hair", "background"] + sorted({*SKINS, *HAIRS, *GROUNDS, *MOODS})


def looks():
    """All (skin, hair, ground, mood)."""
    return [(s, h, g, m) for s in SKINS for h in HAIRS for g in GROUNDS for m in MOODS]


def caption(look):
    skin, hair, ground, mood = look
    return f"a {mood} face with {skin} skin and {hair} hair on a {ground} background"


def smooth(x, a, b):
    """Follows x: by the share `a` of the way where it rises, by `b` where it falls."""
    out, y = np.zeros(len(x)), 0.0
    for i, v in enumerate(x):
        y += (a if v > y else b) * (v - y)
        out[i] = y
    return out


def motion(sound, state, gesture):
    """How the face moves, a dict of arrays of a value per picture: opening and shape of the mouth, gaze (-1 left ... 1
    right), lids (0 open, 1 shut), and how low the head is (in pixels)."""
    n = len(state)
    speaking = state == S.STATES.index("speaking")
    loud = S.loudness(sound)[:n] * speaking
    lid = np.tile((0.6, 1.0, 1.0, 0.5), n // 4 + 1)[3:n + 3]  # of a blink, by the picture's place in its latent frame
    return dict(open=smooth(loud, 0.9, 0.6), shape=S.shape(sound)[:n] * np.minimum(1, 3 * loud), gaze=gesture[:, 1],
                shut=lid * gesture[:, 0], low=2.5 * smooth(loud, 0.25, 0.15))


def ellipse(px, py, cx, cy, rx, ry):
    """Anti-aliased coverage of an ellipse; all arguments broadcast."""
    dx, dy = (px - cx) / rx, (py - cy) / ry
    r = torch.sqrt(dx * dx + dy * dy + 1e-9)
    slope = torch.sqrt((dx / rx) ** 2 + (dy / ry) ** 2 + 1e-9) / r
    return ((1 - r) / slope + 0.5).clamp(0, 1)


def draw(look, moves, size=SIZE):
    """float32 [3, pictures, size, size] in [-1, 1]."""
    skin, hair, ground, mood = look
    col = lambda a: torch.tensor(np.asarray(a), dtype=torch.float32).view(-1, 1, 1)
    rgb = lambda c: torch.tensor(c, dtype=torch.float32).view(3, 1, 1, 1)
    f = SIZE / size
    px = (torch.arange(size).view(1, 1, -1) + 0.5) * f
    py = (torch.arange(size).view(1, -1, 1) + 0.5) * f
    low, gaze, shut = col(moves["low"]), col(moves["gaze"]), col(moves["shut"])
    wide, opening = col(moves["shape"]), col(moves["open"])
    image = rgb(GROUNDS[ground]) + 8 * (0.5 - py / SIZE)

    def paint(colour, coverage):
        nonlocal image
        image = image + (rgb(colour) - image) * coverage[None]

    shade = lambda c, k: tuple(k * v for v in c)
    cx, cy = 48 + 0.0 * low, 50 + low
    paint(shade(SKINS[skin], 0.82), ellipse(px, py, cx, 98, 15, 22))  # neck
    paint(HAIRS[hair], ellipse(px, py, cx, cy - 8, 33, 35))
    paint(SKINS[skin], ellipse(px, py, cx, cy + 2, 27, 34))
    fringe = ellipse(px, py, cx, cy - 30, 27, 15)
    paint(HAIRS[hair], fringe)
    tilt = {"calm": 0.0, "happy": -0.12, "stern": 0.45}[mood]  # of the brows, down towards the nose
    lift = {"calm": 0.0, "happy": -2.5, "stern": 1.0}[mood]
    for side in (-1, 1):
        ex, ey = cx + 11.5 * side, cy - 3
        height = 5.2 * (1 - 0.88 * shut)
        eye = ellipse(px, py, ex, ey, 6.5, height)
        paint((248, 248, 248), eye)
        paint((30, 34, 48), eye * ellipse(px, py, ex + 3.2 * gaze, ey, 3.2, 3.6))
        brow = torch.maximum((px - ex).abs() - 7.5, (py - (ey - 9.5 + lift + tilt * -side * (px - ex))).abs() - 1.4)
        paint(shade(HAIRS[hair], 0.6), (0.5 - brow).clamp(0, 1))
    paint(shade(SKINS[skin], 0.8), ellipse(px, py, cx, cy + 8, 2.4, 3.6))  # nose
    half = 9.5 + 3.5 * wide.clamp(min=0) + 4.0 * wide.clamp(max=0)
    bend = {"calm": 0.0, "happy": 4.0, "stern": -3.0}[mood] * (1 - 0.5 * opening)
    my = cy + 20.5 - bend * (((px - cx) / half) ** 2).clamp(max=1) + 0.5 * bend
    paint((170, 62, 66), ellipse(px, py, cx, my, half + 1.5, 1.9 + 8.0 * opening))
    paint((46, 12, 18), ellipse(px, py, cx, my, half - 0.5, 0.35 + 7.6 * opening) * (opening > 0.02))
    return image / 127.5 - 1
