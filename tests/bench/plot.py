#!/usr/bin/env python3
"""Draws the JSON lines of `weft_measure long|truth|face --json` as one SVG picture on standard output.
usage: weft_measure long --json | tests/bench/plot.py > long.svg, or plot.py LINES"""
import base64
import html
import json
import math
import sys

COLOURS = ["#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#c53030", "#4a5568", "#319795"]


def text(x, y, words):
    return f'<text x="{x:.1f}" y="{y:.1f}">{html.escape(words, quote=False)}</text>\n'


def line(x0, y0, x1, y1):
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="#cbd5e0"/>\n'


def rectangle(x, y, width, height, style):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>\n'


def path(points, style, close=""):
    joined = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{joined}{close}" {style}/>\n'


def picture(width, height, parts, size=12):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'font-family="sans-serif" font-size="{size}">\n<rect width="100%" height="100%" fill="white"/>\n'
            + "".join(parts) + "</svg>\n")


class Panel:
    """Values over the frames of a video."""
    LEFT, WIDTH, HEIGHT, GAP, TOP = 60, 1000, 180, 50, 60

    def __init__(self, index, frames, low, high):
        self.top, self.frames = self.TOP + index * (self.HEIGHT + self.GAP), frames
        self.low, self.high = low, high

    def at(self, frame, value):
        share = (value - self.low) / max(self.high - self.low, 1e-9)
        return self.LEFT + self.WIDTH * frame / self.frames, self.top + self.HEIGHT * (1 - min(max(share, 0), 1))

    def frame(self, title):
        return (text(self.LEFT, self.top - 8, title)
                + rectangle(self.LEFT, self.top, self.WIDTH, self.HEIGHT, 'fill="none" stroke="#4a5568"')
                + text(8, self.top + 10, f"{self.high:.3g}") + text(8, self.top + self.HEIGHT, f"{self.low:.3g}"))

    def line(self, values, first, colour):
        points = [self.at(first + i, value) for i, value in enumerate(values)]
        return path(points, f'fill="none" stroke="{colour}"')

    def dot(self, frame, value, colour, filled):
        x, y = self.at(frame, value)
        fill = colour if filled else "white"
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" stroke="{colour}" fill="{fill}"/>\n'


def scale(values):
    """The range of a panel. The few values outside lie on its edge."""
    values = sorted(values) or [0, 1]
    few = len(values) // 50
    low, high = values[few], values[-1 - few]
    more = 0.4 * (high - low)
    return max(values[0], low - more), min(values[-1], high + more)


def drift(curve):
    """The brightness less the mean of the first block."""
    first = curve["brightness"][:curve["borders"][0] if curve["borders"] else None]
    mean = sum(first) / len(first)
    return [value - mean for value in curve["brightness"]]


def long_video(lines):
    """How the videos of several methods keep their picture over time."""
    curves = [(each["curve"]["name"], each["curve"]) for each in lines if "curve" in each]
    stretch = curves[0][1]["stretch_frames"]
    frames = max(len(curve["brightness"]) for _, curve in curves)
    changes = Panel(0, frames, 0, scale([value for _, curve in curves for value in curve["changes"]])[1])
    drifts = Panel(1, frames, *scale([value for _, curve in curves for value in drift(curve)]))
    reads = Panel(2, frames, 0, 1)
    parts = [text(Panel.LEFT, 16, f"{lines[0]['model']}: {curves[0][1]['prompt']}"),
             changes.frame("mean change from the frame before, in levels; dots are where blocks meet"),
             drifts.frame("mean level less that of the first block"),
             reads.frame(f"worst overlap of a view with an ideal shape, per stretch of {stretch} frames; "
                         "filled: colour, shape, motion and ground as asked")]
    legend = Panel.LEFT
    for i, (name, curve) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        parts += [rectangle(legend, 26, 12, 12, f'fill="{colour}"'), text(legend + 16, 36, name)]
        legend += 40 + 7 * len(name)
        parts.append(changes.line(curve["changes"], 1, colour))
        parts += [changes.dot(at, curve["changes"][at - 1], colour, True) for at in curve["borders"] or []]
        parts.append(drifts.line(drift(curve), 0, colour))
        aside = 5 * (i - (len(curves) - 1) / 2) * frames / Panel.WIDTH
        parts += [reads.dot((s + 0.5) * stretch + aside, read["overlap"], colour, read["right"])
                  for s, read in enumerate(curve.get("stretches", []))]
    bottom = Panel.TOP + 3 * (Panel.HEIGHT + Panel.GAP)
    parts += [text(Panel.LEFT, bottom - Panel.GAP + 18, "frame 0"),
              text(Panel.LEFT + Panel.WIDTH - 60, bottom - Panel.GAP + 18, f"frame {frames}")]
    return picture(Panel.LEFT + Panel.WIDTH + 20, bottom, parts)


def step_of(spread):
    """1, 2 or 5 times a power of ten, so that an axis has about five steps."""
    power = 10 ** math.floor(math.log10(spread / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if spread / 5 <= factor * power or factor == 10)


def truth(lines):
    """The quality of methods against the bytes that they send; exact ones stand on a line of their own."""
    left, top, width, height, legend = 70, 60, 700, 420, 450
    known = [each["psnr"] for each in lines if each["psnr"] is not None] or [30]
    same, low = math.ceil(max(known)) + 4, math.floor(min(known)) - 1
    most = 1.05 * max(1, *(each["bytes_per_step"] / 1024 for each in lines))
    x = lambda value: left + width * value / most
    y = lambda value: top + height * (1 - (value - low) / (same + 1 - low))
    first, bottom = lines[0], top + height
    clips = first["trained"]["clips"] + first["held_out"]["clips"]
    parts = [text(left, 20, f"{first['model']}, {clips} clips, {first['ranks']} ranks")]
    across, up = step_of(most), step_of(same - low)
    for i in range(int(most / across) + 1):
        parts += [line(x(i * across), top, x(i * across), bottom), text(x(i * across) - 8, bottom + 18, f"{i * across:g}")]
    for i in range(math.ceil(low / up), math.ceil((same - 2) / up)):
        parts += [line(left, y(i * up), left + width, y(i * up)), text(left - 34, y(i * up) + 4, f"{i * up:g}")]
    parts += [line(left, y(same), left + width, y(same)), text(left - 40, y(same) + 4, "same"),
              text(left - 60, top - 14, "PSNR in dB against full attention"),
              text(left + width - 220, bottom + 38, "KiB sent per step by all ranks")]
    for i, each in enumerate(lines):
        exact = each["psnr"] is None
        at, level = x(each["bytes_per_step"] / 1024), y(same if exact else each["psnr"])
        parts += [f'<circle cx="{at:.1f}" cy="{level:.1f}" r="9" fill="{"#9ae6b4" if exact else "#90cdf4"}"/>\n',
                  text(at - (3 if i < 9 else 7), level + 4, str(i + 1)),
                  text(left + width + 20, top + 16 * i, f"{i + 1}  {each['case']}")]
    return picture(left + width + legend, max(bottom + 60, top + 16 * len(lines)), parts)


def face(lines):
    """A stream's faces over time, and below them what it does, its loudness and the opening of its mouth."""
    shown, left, side, top, band, sound, mouth = lines[0], 20, 64, 40, 22, 70, 50
    faces, states, loudness = shown["faces"], shown["states"], shown["loudness"]
    width, each = side * len(faces), side * len(faces) / len(states)
    bands = top + side + 6
    middle = bands + band + 24 + sound / 2
    lips = bands + band + 48 + sound
    parts = [text(left, 24, shown["caption"])]
    for i, png in enumerate(faces):
        data = base64.b64encode(bytes.fromhex(png)).decode()
        parts.append(f'<image x="{left + i * side}" y="{top}" width="{side}" height="{side}" '
                     f'href="data:image/png;base64,{data}"/>\n')
    begins = [i for i in range(len(states)) if i == 0 or states[i] != states[i - 1]]
    for first, end in zip(begins, begins[1:] + [len(states)]):
        colour = {"speaking": "#c6f6d5", "listening": "#bee3f8"}.get(states[first], "#edf2f7")
        parts += [rectangle(left + each * first, bands, each * (end - first), band, f'fill="{colour}"'),
                  text(left + each * first + 4, bands + 15, states[first])]
    most = max(1e-9, *loudness)
    above = [(left + each * (i + 0.5), middle - sound / 2 * value / most) for i, value in enumerate(loudness)]
    below = [(x, 2 * middle - y) for x, y in reversed(above)]
    parts += [path(above + below, 'fill="#2b6cb0" stroke="#2b6cb0"', "Z"),
              text(left, middle - sound / 2 - 4, f"loudness, over {len(states) / shown['fps']:.1f} s")]
    opening = shown.get("opening")
    if opening:
        parts += [text(left, lips - 4, "opening of the mouth"),
                  path([(left + width / len(opening) * (i + 0.5), lips + mouth * (1 - min(max(value, 0), 1)))
                        for i, value in enumerate(opening)], 'fill="none" stroke="#c53030"')]
    return picture(width + 2 * left, lips + mouth + 12 if opening else lips, parts, 13)


def main():
    with open(sys.argv[1]) if len(sys.argv) > 1 else sys.stdin as file:
        lines = [json.loads(each) for each in file]
    drawings = {"long": long_video, "truth": truth, "face": face}
    name = lines[0]["bench"] if lines else "nothing"
    if name not in drawings:
        sys.exit(f"plot.py draws {', '.join(drawings)}, but these are lines of {name}")
    sys.stdout.write(drawings[name](lines))


main()
