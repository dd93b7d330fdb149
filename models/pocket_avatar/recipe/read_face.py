"""Read a face's mouth, gaze, lids, mood and colours from its pixels, by plain measurements at known places.
Run it to see how well it reads drawn faces."""
import numpy as np
import face as F

MOUTH = (slice(58, 90), slice(30, 66))
EYES = (slice(38, 58), (slice(28, 45), slice(51, 68)))  # of both heads' heights
BROWS = slice(30, 48)


def near(picture, colour, within):
    return np.abs(picture.astype(float) - colour).max(-1) < within


def colour_of(pixels, names):
    middle = np.median(pixels.reshape(-1, 3), 0)
    return min(names, key=lambda n: np.abs(middle - names[n]).sum())


def opening(picture):
    """0 ... about 1: how much of the mouth's region is its dark inside."""
    return near(picture[MOUTH], (46, 12, 18), 38).sum() / 290


def whites(picture, side):
    return near(picture[EYES[0], EYES[1][side]], (248, 248, 248), 60)


def shut(picture):
    return whites(picture, 0).sum() + whites(picture, 1).sum() < 18


def gaze(picture):
    """Where the pupils are between the ends of the whites: -1 left ... 1 right; None with the lids shut."""
    if shut(picture):
        return None
    out = []
    for side in (0, 1):
        white = whites(picture, side)
        dark = (picture[EYES[0], EYES[1][side]].max(-1) < 90) & (np.arange(20)[:, None] > 6)
        if white.sum() > 4 and dark.sum() > 2:
            out.append(np.nonzero(dark)[1].mean() - np.nonzero(white)[1].mean())
    return float(np.clip(np.mean(out) / 5, -1, 1)) if out else None


def colours(picture):
    """Ground, hair, skin."""
    return (colour_of(picture[4:40, 2:10], F.GROUNDS), colour_of(picture[8:18, 40:56], F.HAIRS),
            colour_of(picture[56:64, 28:36], F.SKINS))


def corners(picture):
    """How much higher the corners of the mouth are than its middle, in pixels; from a picture with the mouth shut."""
    red = picture[MOUTH].astype(float)
    red = np.clip(red[..., 0] - red[..., 1:].mean(-1) - 40, 0, None)
    rows = np.arange(red.shape[0])[:, None]
    height = lambda part: (red[:, part] * rows).sum() / (red[:, part].sum() + 1e-6)
    return height(slice(14, 22)) - (height(slice(8, 12)) + height(slice(25, 29))) / 2


def mood(pictures):
    """Of a stream: from those of its pictures whose mouth is shut, or the least open ones."""
    order = sorted(pictures, key=opening)[:max(1, len(pictures) // 5)]
    bend = np.median([corners(p) for p in order])
    return "happy" if bend > 1.0 else "stern" if bend < -0.6 else "calm"


if __name__ == "__main__":
    import common as C
    import sound as S
    rng, looks = np.random.default_rng(77), F.looks()
    read, true, right, seen = [], [], 0, []
    for _ in range(24):
        look = looks[rng.integers(len(looks))]
        sound, state = S.drawn(rng, 4)
        moves = F.motion(rng, sound, state)
        pictures = C.to_bytes(F.draw(look, moves))
        read += [opening(p) for p in pictures]
        true += list(moves["open"])
        seen += [(gaze(p), g, shut(p), s) for p, g, s in zip(pictures, moves["gaze"], moves["shut"])]
        skin, hair, ground, m = look
        got = colours(pictures[0]) + (mood(pictures),)
        right += np.array([a == b for a, b in zip(got, (ground, hair, skin, m))])
    print("opening: correlation %.3f" % np.corrcoef(read, true)[0, 1])
    g = np.array([(a, b) for a, b, s, _ in seen if a is not None])
    print("gaze: correlation %.3f; lids right %.3f" % (np.corrcoef(g.T)[0, 1], np.mean([a == (b > 0.7) for _, _, a, b in seen])))
    print("of 24: ground %d, hair %d, skin %d, mood %d" % tuple(right))
